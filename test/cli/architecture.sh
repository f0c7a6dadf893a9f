#!/bin/bash
# The house's rules that no compiler checks: which way includes go, what the library's object needs and offers, that the public
# headers are C99 and C++11..20, how long files are.
set -u
cd "${DP_ROOT:-.}" || exit 1
build=${DP_BUILD:-build}
bad=0
verdict() { # NAME, what is wrong (empty: nothing)
    if [ -z "$2" ]; then echo "ok $1"; else printf 'not ok %s\n%s\n' "$1" "$2"; bad=1; fi
}

# What a file of a directory may include, as a pattern over paths from the root. The first row that fits a file counts.
rules='
^dp/base/                ^dp/base/[^/]*\.h$
^dp/                     ^(dp/.*|nn/[^/]*|data/[^/]*)\.h$
^nn/ops/                 ^(nn/ops/[^/]*|nn/[^/]*|dp/base/[^/]*)\.h$
^nn/cpu/                 ^(nn/cpu/.*|nn/[^/]*|dp/base/[^/]*)\.h$
^nn/cuda/                ^(nn/cuda/.*|nn/[^/]*|dp/base/[^/]*)\.h$
^nn/                     ^(nn/ops/ops|nn/[^/]*|dp/base/[^/]*)\.h$
^data/                   ^(data/[^/]*|dp/base/[^/]*)\.h$
^tools/                  ^(tools/[^/]*|dp/dp|dp/base/base|nn/nn|data/data)\.h$
'
wrong=$(find dp nn data tools -name '*.[ch]' | sort | while read -r file; do
    allowed=$(awk -v f="$file" 'NF && f ~ $1 { print $2; exit }' <<<"$rules")
    sed -n 's/^ *# *include *"\(.*\)".*/\1/p' "$file" | while read -r include; do
        path=$(realpath -m --relative-to=. "$(dirname "$file")/$include")
        [[ $path =~ $allowed ]] || echo "$file must not include $path"
    done
done)
verdict "includes go tools -> dp -> nn, data -> dp/base" "$wrong"

wrong=$(find dp nn data tools test -name '*.[ch]' -exec awk 'END { if (NR > 700) print FILENAME " has " NR " lines, 700 are allowed" }' {} \;)
verdict "no file is longer than 700 lines" "$wrong"

if [ -n "${DP_SANITIZER:-}" ]; then
    echo "skipped symbols: a sanitizer's build"
else
    wrong=$(nm -g --defined-only "$build/libdp.a" | awk 'NF == 3 && $3 !~ /^dp_/ { print $3 " is global" }')
    verdict "only dp_ names are global in libdp.a" "$wrong"
    # what every header declares must be there, or an embedder's program does not link
    nm -g --defined-only "$build/libdp.a" | awk 'NF == 3 { print $3 }' | sort >"$build/test/symbols"
    wrong=$(sed -n 's/^DP_API .*[ *]\(dp_[a-z0-9_]*\)(.*/\1/p' dp/dp.h dp/base/base.h nn/nn.h data/data.h | sort -u |
        comm -23 - "$build/test/symbols" | sed 's/$/ is declared and not defined/')
    verdict "every declared function is in libdp.a" "$wrong"
    never='^(exit|_exit|abort|quick_exit|__assert_fail|printf|vprintf|puts|putchar|putc|perror|stdout|stderr|__printf_chk|signal|sigaction|setlocale)$'
    wrong=$(nm -u "$build/libdp.a" | awk -v never="$never" '$1 == "U" && $2 ~ never { print "libdp.a uses " $2 }')
    verdict "libdp.a neither prints nor ends the process" "$wrong"
    wrong=$(objdump -t "$build/libdp.a" | awk '$3 == "O" && $4 ~ /^\.(data|bss|tdata|tbss)/ && $4 !~ /rel\.ro/ || $4 == "*COM*" { print "libdp.a keeps a variable: " $NF }')
    verdict "libdp.a keeps no mutable globals" "$wrong"
fi

try_header() { # compiler and standard
    printf '#include <dp/%s>\nint main(void) { return 0; }\n' "dp.h" | "$@" -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only - 2>&1
    for h in dp/base/base.h nn/nn.h data/data.h; do # each alone, too
        printf '#include <%s>\n' "$h" | "$@" -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only - 2>&1
    done
}
cc=${CC:-gcc}
verdict "public headers are C99" "$(try_header "$cc" -x c -std=c99)"
verdict "public headers are C11" "$(try_header "$cc" -x c -std=c11)"
if command -v "${CXX:-g++}" >/dev/null; then
    for std in 11 17 20; do verdict "public headers are C++$std" "$(try_header "${CXX:-g++}" -x c++ -std=c++$std)"; done
else
    echo "skipped C++: no C++ compiler"
fi
exit $bad
