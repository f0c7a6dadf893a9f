#!/bin/bash
# Builds the four embedding programs against the build directory and, by pkg-config, against an installed copy; runs them and checks
# that the loss falls (their exit code) and that the library itself writes nothing: the program's one line is all that is seen.
set -u
cd "${DP_ROOT:-.}" || exit 1
build=${DP_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-gcc} cxx=${CXX:-g++} bad=0
case ${DP_SANITIZER:-} in
    asan) san="-fsanitize=address,undefined" ;;
    tsan) san="-fsanitize=thread" ;;
    *) san= ;;
esac
strict="-Wall -Wextra -Wshadow -Werror -O1 -g $san"

try() { # NAME COMMAND...: compile, then run
    local name=$1
    shift
    if ! "$@" -o "$work/program" >"$work/log" 2>&1; then
        echo "not ok $name: does not build"
        cat "$work/log"
        bad=1
        return
    fi
    "$work/program" >"$work/out" 2>"$work/err"
    local code=$?
    if [ $code -ne 0 ] || [ -s "$work/err" ] || ! grep -qxE 'loss [0-9.]+, then [0-9.]+' "$work/out" || [ "$(wc -l <"$work/out")" != 1 ]; then
        echo "not ok $name: exit code $code"
        cat "$work/out" "$work/err"
        bad=1
    else
        echo "ok $name"
    fi
}
try_all() { # WHERE, compiler flags, linker flags
    for f in embed functional collective; do try "$f.c, $1" $cc -std=c99 $strict $2 test/embed/$f.c $3; done
    if command -v "$cxx" >/dev/null; then
        try "embed.cpp, $1" $cxx -std=c++11 $strict $2 test/embed/embed.cpp $3
    else
        echo "skipped embed.cpp, $1: no C++ compiler"
    fi
}

libs=$(sed -n 's/^LIBS = //p' Makefile)
try_all "the build directory" "-I." "$build/libdp.a $libs"

# The tests run in parallel and read the build directory: what is installed must not be built again meanwhile.
if ! make -s --no-print-directory install -o all B="$build" PREFIX="$work/there" >"$work/log" 2>&1; then
    echo "not ok make install"
    cat "$work/log"
    exit 1
fi
export PKG_CONFIG_PATH=$work/there/lib/pkgconfig
try_all "an installed copy" "$(pkg-config --cflags libdp)" "$(pkg-config --libs libdp)"
"$work/there/bin/dptrain" --version | grep -q "^dptrain $(pkg-config --modversion libdp)$" && echo "ok version" || { echo "not ok version"; bad=1; }

make -s --no-print-directory uninstall PREFIX="$work/there" >"$work/log" 2>&1
left=$(find "$work/there" -type f)
[ -z "$left" ] && echo "ok make uninstall" || { printf 'not ok make uninstall leaves\n%s\n' "$left"; bad=1; }
for f in embed.c embed.cpp functional.c collective.c; do
    [ "$(wc -l <test/embed/$f)" -le 80 ] || { echo "not ok $f is longer than 80 lines"; bad=1; }
done
exit $bad
