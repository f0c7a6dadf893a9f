# The steps of check.sh, each a function that runs by itself. note: its line in the report; figure: its numbers. P has the programs: as they
# ship, or in a rehearsal over the simulator. Sourced.
# shellcheck shell=bash
note() { echo "$*" >"$W/$STEP.note"; }
figure() { echo "$1 $2" >>"$W/$STEP.figures"; }
skip() { note "$*"; exit 77; }
fail() { note "$*"; exit 1; }
STEP=${2:-}
MODELS="mlp lenet mnist-cnn resnet20 resnet18 gpt-mini"

smi() { [ -z "$REHEARSE" ] && command -v nvidia-smi >/dev/null && nvidia-smi "$@"; }
gpus() { if [ -n "$REHEARSE" ]; then echo "${CUSIM_DEVICES:-1}"; else smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c .; fi; }
header() { printf '#include <%s>\n' "$@" | ${CC:-gcc} -E -x c - >/dev/null 2>&1; }
python_at() { "$PYTHON" -c "import importlib.util as u; print(list(u.find_spec('$1').submodule_search_locations)[0])" 2>/dev/null; }

# The environment of all steps: what was found, in DEPS first.
surroundings()
{
    local folder
    export P=$B CUDNN=${CUDNN:-} CUDA_HOME=${CUDA_HOME:-} LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} DP_ROOT=$PWD
    if [ -n "$DEPS" ]; then
        DEPS=$(cd "$DEPS" && pwd) || exit 1
        export CPATH=$DEPS/include${CPATH:+:$CPATH}
        for folder in "$DEPS"/lib "$DEPS"/lib64 "$DEPS"/lib/x86_64-linux-gnu; do
            [ ! -d "$folder" ] || export LIBRARY_PATH=$folder${LIBRARY_PATH:+:$LIBRARY_PATH} LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        done
    fi
    # What is built without oneDNN lies apart: its objects are not those of the library.
    export NO_ONEDNN=${NO_ONEDNN:-}
    header dnnl.h || NO_ONEDNN=1
    if [ -n "$NO_ONEDNN" ]; then P=$B/no-onednn B=$B/no-onednn; fi
    mkdir -p "$B" || exit 1
    if [ -n "$REHEARSE" ]; then
        P=$B/test/cusim
        return
    fi
    [ -n "$CUDA_HOME" ] || CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    if [ -z "$CUDNN" ] && ! CPATH=$CUDA_HOME/include${CPATH:+:$CPATH} header cudnn.h; then CUDNN=$(python_at nvidia.cudnn); fi
    LD_LIBRARY_PATH=${CUDNN:+$CUDNN/lib:}$CUDA_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# make with what this machine has: without oneDNN its file is made before, of one that refuses, and left as it is (-o).
build()
{
    local -a flags=()
    if [ -n "$NO_ONEDNN" ]; then
        mkdir -p "$B/obj/nn/cpu" || return
        ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -fPIC -fvisibility=hidden -Wall -Wextra -c -o "$B/obj/nn/cpu/onednn.o" test/gpu/no_onednn.c || return
        flags=(-o "$B/obj/nn/cpu/onednn.o" LIBS="-lgomp -lcjson -lz -lm -pthread")
    fi
    make B="$B" "${flags[@]}" "$@"
}

# The settings of MODEL for a short run that every machine can do.
model()
{
    echo "tools/configs/$1.ini"
    [ "$1" != gpt-mini ] || { cat README.md dp/README.md >"$W/text" && echo "data.train=$W/text"; }
}
losses() { sed -n 's/^{"type":"step"[^{]*"loss":\([0-9.e+-]*\),.*/\1/p' "$1"; }
same() { cmp "$W/$1" "$W/one" || fail "$1 does not train the bytes of one device"; }

# Trains NAME's weights on two devices: real ones where there are, else one GPU as two. They are left in $W/NAME.
two_devices()
{
    local name=$1 logical=1
    shift
    [ "$(gpus)" -ge 2 ] || logical=2
    DP_CUDA_LOGICAL=$logical "$P/dptrain" tools/configs/mlp.ini run.steps=6 data.batch_size=32 data.accumulate=1 devices.shards=2 \
        run.deterministic=1 run.dir="$W/$name.run" run.overwrite=1 --quiet "$@" && cp "$W/$name.run/last.safetensors" "$W/$name"
}

step_machine()
{
    figure processor "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
    figure gpus "$(gpus)"
    figure gpu "$(smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | sort | uniq -c | paste -sd';')"
    [ "$(uname -m)" = x86_64 ] || fail "this is no x86-64"
    [ "$(gpus)" -ge 1 ] || fail "nvidia-smi shows no GPU"
    [ -n "$REHEARSE" ] || [ -x "$CUDA_HOME/bin/nvcc" ] || fail "no nvcc: neither in CUDA_HOME, on PATH, nor in /usr/local/cuda"
    note "$(gpus) GPUs${REHEARSE:+, simulated}"
}

step_build()
{
    local archs a
    if [ -n "$REHEARSE" ]; then
        build "$P/dptrain" "$P/dpbench" "$P/test_cuda_ops" || fail "the rehearsal does not build"
        note "${NO_ONEDNN:+without oneDNN}"
        return
    fi
    archs=$(smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -u | paste -sd' ')
    for a in $archs; do # a later GPU than the toolkit knows runs from the PTX of a full build
        "$CUDA_HOME/bin/nvcc" --list-gpu-arch | grep -qx "compute_$a" || archs=''
    done
    figure toolkit "$("$CUDA_HOME/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    figure archs "${archs:-all}"
    build CUDA_HOME="$CUDA_HOME" ${CUDNN:+CUDNN="$CUDNN"} ${archs:+CUDA_ARCHS="$archs"} programs cuda || fail "the programs do not build"
    [ -e "$B/libdpcuda.so" ] || fail "make has built no libdpcuda.so"
    # The op table's test finds the plugin beside the program, as dptrain does; it needs nothing of the simulator.
    if header setjmp.h stdarg.h stddef.h stdint.h cmocka.h; then
        build CUDA_HOME="$CUDA_HOME" ${archs:+CUDA_ARCHS="$archs"} "$B/test/gpu/test_cuda_ops" || fail "the test of the op table does not build"
    fi
    note "for sm ${archs:-of all kinds}${NO_ONEDNN:+, without oneDNN}"
}

step_devices()
{
    "$P/dptrain" --devices | tee "$W/devices"
    ! grep 'cuda:.*not usable' "$W/devices" || fail "$(grep -m1 'cuda:.*not usable' "$W/devices")"
    figure devices "$(grep -c 'cuda:' "$W/devices")"
    grep -q 'cuda:0' "$W/devices" || fail "dptrain shows no GPU"
}

step_ops()
{
    local ops=$B/test/gpu/test_cuda_ops code
    local -a names=()
    [ -z "$REHEARSE" ] || { ops=$P/test_cuda_ops names=(linear conv_3x3_pad attention); }
    [ -x "$ops" ] || skip "it was not built (cmocka?)"
    DP_CUDA_PLUGIN=$B/libdpcuda.so "$ops" "${names[@]}" >"$W/ops" 2>&1
    code=$?
    cat "$W/ops"
    figure passed "$(grep -c '^\[       OK' "$W/ops")"
    [ $code = 0 ] || fail "failed: $(sed -n 's/^\[  FAILED  \] \([^0-9].*\)/\1/p' "$W/ops" | sort -u | head -n 5 | paste -sd' ')"
    note "$(grep -c '^\[       OK' "$W/ops") cases, three ways each"
}

# The losses of six models on a GPU and on the CPU, which the goldens tie to PyTorch.
step_compare()
{
    local m d far='' steps=5
    local -a settings
    [ -z "$NO_ONEDNN" ] || skip "without oneDNN the CPU trains nothing; the goldens of the step ops stand for it"
    [ -z "$REHEARSE" ] || { MODELS="mlp lenet" steps=2; }
    for m in $MODELS; do
        mapfile -t settings < <(model "$m")
        for d in cpu:0 cuda:0; do
            "$P/dptrain" "${settings[@]}" devices.use=$d devices.tf32=off run.steps=$steps run.log_every=1 data.batch_size=16 data.accumulate=1 \
                run.dir="$W/$m-${d%:0}" run.overwrite=1 --quiet || fail "$m does not train on $d"
        done
        # As many finite losses as steps on both, or they are as far apart as can be.
        paste <(losses "$W/$m-cuda/log.jsonl") <(losses "$W/$m-cpu/log.jsonl") | awk -F'\t' -v steps=$steps '
            NF == 2 && $1 != "" && $2 + 0 != 0 { n++; d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > most) most = d }
            END { if (n != steps || NR != steps) most = 1; printf "%.2g\n", most; exit !(most <= 1e-3) }' >"$W/most" || far="$far $m"
        figure "$m" "$(cat "$W/most")"
    done
    [ -z "$far" ] || fail "losses differ from the CPU's by more than 0.1 %:$far"
    note "losses of$(for m in $MODELS; do printf ' %s' "$m"; done) are the CPU's"
}

step_two()
{
    local mode
    two_devices one devices.use=cuda:0 || fail "one device does not train"
    for mode in classic dp balanced ddp; do
        two_devices $mode devices.use=cuda:0,cuda:1 devices.mode=$mode || fail "$mode does not train on two devices"
        same $mode
    done
    two_devices layers devices.use=cuda:0,cuda:1 devices.mode=balanced devices.graphs=off || fail "without graphs it does not train"
    same layers
    note "classic, dp, balanced, ddp and without graphs: the bytes of one device, on $([ "$(gpus)" -lt 2 ] && echo one GPU as two || echo two GPUs)"
}

step_transports()
{
    local t code ran=''
    two_devices one devices.use=cuda:0 || fail "one device does not train"
    for t in host auto copy peer; do
        two_devices "transport-$t" devices.use=cuda:0,cuda:1 devices.mode=balanced devices.transport=$t 2>"$W/refused"
        code=$?
        cat "$W/refused"
        if [ $code = 2 ] && { [ $t = copy ] || [ $t = peer ]; }; then
            figure $t refused
            continue
        fi
        [ $code = 0 ] || fail "transport $t: $(head -n 1 "$W/refused")"
        same "transport-$t"
        ran="$ran $t"
    done
    [ "$(gpus)" -lt 2 ] || "$P/dptrain" --devices --measure devices.use=all || fail "the matrix cannot be measured"
    smi topo -m
    note "the same bytes over:$ran"
}

step_demo()
{
    local accuracy steps=0
    [ -z "$REHEARSE" ] || steps=3
    "$P/dptrain" tools/configs/lenet.ini devices.use=cuda:0 run.steps=$steps run.dir="$W/demo" run.overwrite=1 --quiet || fail "lenet does not train"
    accuracy=$(sed -n 's/.*"type":"eval".*"accuracy":\([0-9.]*\).*/\1/p' "$W/demo/log.jsonl" | tail -n 1)
    figure accuracy "${accuracy:-none}"
    [ -n "$REHEARSE" ] || awk -v a="${accuracy:-0}" 'BEGIN { exit !(a > 0.82) }' || fail "accuracy ${accuracy:-none}; wanted above 0.82"
    note "lenet's accuracy ${accuracy:-none}"
}

# MB in use on all GPUs, and how many processes have a context there (0 where a container hides them).
memory_in_use() { smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum + 0 }'; }
contexts() { smi --query-compute-apps=pid --format=csv,noheader | grep -c '^ *[0-9]'; }

# A training is killed in the middle of its steps: memory and contexts go back to what they were.
step_kill()
{
    local memory context pid during=0 after=0 left=0 log=$W/kill/log.jsonl
    [ -z "$REHEARSE" ] || skip "a simulated GPU ends with its process"
    memory=$(memory_in_use) context=$(contexts)
    "$P/dptrain" tools/configs/lenet.ini devices.use=cuda:0 run.epochs=100000 run.log_every=1 run.dir="$W/kill" run.overwrite=1 --quiet &
    pid=$!
    for _ in {1..20}; do
        sleep 1
        [ "$(losses "$log" 2>/dev/null | head -n 20 | wc -l)" -lt 20 ] || break
        kill -0 $pid 2>/dev/null || break
    done
    during=$(memory_in_use)
    kill -KILL $pid
    wait $pid
    [ $? = 137 ] || fail "the training ended before it was killed"
    [ "$during" -gt "$memory" ] || fail "$memory MB in use before and $during MB while it trained: there is nothing to be seen"
    for _ in {1..10}; do
        after=$(memory_in_use) left=$(contexts)
        if [ "$after" -le $((memory + 16)) ] && [ "$left" -le "$context" ]; then break; fi
        sleep 1
    done
    figure before_mb "$memory"
    figure during_mb "$during"
    figure after_mb "$after"
    [ "$after" -le $((memory + 16)) ] || fail "$memory MB in use before, $after MB after SIGKILL"
    [ "$left" -le "$context" ] || fail "$context contexts before, $left after SIGKILL"
    note "$memory MB, $during MB while it trained, $after MB after SIGKILL"
}

# What the GPU runs in a step, that inside libraries and graphs too: the difference of a run of 20 steps and one of 10.
step_kernels()
{
    local m n home=${CUDA_HOME:-/usr/local/cuda} folder
    local -a settings flags=()
    for folder in "$home" "$home/extras/CUPTI"; do
        flags+=(-isystem "$folder/include" -L"$folder/lib64" -L"$folder/lib" "-Wl,-rpath,$folder/lib64:$folder/lib")
    done
    echo '#include <cupti.h>' | ${CC:-gcc} -E "${flags[@]}" -x c - >/dev/null 2>&1 || skip "the toolkit has no CUPTI"
    ${CC:-gcc} -std=c11 -O2 -Wall -Wextra -shared -fPIC -o "$W/kernels.so" test/gpu/kernels.c "${flags[@]}" -lcupti || fail "kernels.c does not build"
    [ -z "$REHEARSE" ] || skip "kernels.c builds; it counts on a real GPU"
    for m in $MODELS; do
        mapfile -t settings < <(model "$m")
        for n in 10 20; do
            CUDA_INJECTION64_PATH=$W/kernels.so DP_KERNELS=$W/count-$n "$P/dptrain" "${settings[@]}" devices.use=cuda:0 run.steps=$n \
                data.batch_size=16 data.accumulate=1 run.dir="$W/count" run.overwrite=1 --quiet || fail "$m does not train under CUPTI"
            [ -s "$W/count-$n" ] || fail "CUPTI has counted nothing"
        done
        paste "$W/count-10" "$W/count-20" | awk -v m="$m" '{ print m "_" $1, ($4 - $2) / 10; if ($1 == "kernels" && $4 <= $2) none = 1 } END { exit none || NR != 4 }' \
            >>"$W/$STEP.figures" || fail "no kernels were counted for $m"
        rm "$W/count-10" "$W/count-20"
    done
    note "kernels a step:$(sed -n 's/_kernels / /p' "$W/$STEP.figures" | paste -sd, | sed 's/^/ /')"
}

step_speed()
{
    local m rate length=2
    local -a settings
    [ -z "$REHEARSE" ] || { MODELS=mlp length=0.2; }
    for m in $MODELS; do
        mapfile -t settings < <(model "$m")
        "$P/dpbench" speed "${settings[@]}" devices.use=all data.accumulate=1 --devices 1 --seconds $length --json "$W/$m.json" || fail "dpbench speed $m"
        rate=$(sed -n 's/.*"samples_per_s": \([0-9.e+]*\).*/\1/p' "$W/$m.json" | head -n 1)
        [ -n "$rate" ] || fail "dpbench speed $m gives no samples_per_s"
        figure "$m" "$rate"
    done
    [ -z "$REHEARSE" ] && [ "$(gpus)" -ge 2 ] && "$P/dpbench" imbalance tools/configs/resnet18.ini devices.use=all --steps 20 --json "$OUT/gpu-imbalance.json"
    note "samples/s of $MODELS"
}

step_pytorch()
{
    local m rate ratio=''
    "$PYTHON" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || skip "no PyTorch with a GPU for $PYTHON"
    for m in $MODELS; do
        rate=$(DEVICE=cuda "$PYTHON" bench/peers/torch_speed.py "$m" 1 2 | awk '{ print $1 }')
        [ -n "$rate" ] || fail "PyTorch does not train $m"
        figure "$m" "$rate"
        ratio="$ratio$(awk -v m="$m" -v r="$rate" '$1 == m { printf " %s %.2f", m, $2 / r }' "$W/speed.figures" 2>/dev/null)"
    done
    note "samples/s of $MODELS${ratio:+; dp over PyTorch:$ratio}"
}

step_sanitizer()
{
    local tool=${CUDA_HOME:-/none}/bin/compute-sanitizer
    [ -z "$REHEARSE" ] || skip "for a real GPU"
    [ -x "$tool" ] || skip "no compute-sanitizer"
    "$tool" --error-exitcode 9 "$P/dptrain" tools/configs/lenet.ini devices.use=cuda:0 run.steps=3 data.batch_size=8 run.dir="$W/memcheck" run.overwrite=1 --quiet ||
        fail "compute-sanitizer found something, see gpu-sanitizer.log"
}

# gpu-report.txt for people, gpu-report.json for programs.
report()
{
    local counts
    counts=$(awk -F'\t' '{ n[$2]++ } END { printf "%d passed, %d failed, %d slow, %d skipped", n["passed"], n["failed"], n["slow"], n["skipped"] }' "$W/steps")
    {
        echo "GPU check of $(sed -n 's/.*DP_VERSION_TEXT "\(.*\)"/\1/p' dp/base/base.h), $(date -u +%Y-%m-%d)${REHEARSE:+, a rehearsal on simulated GPUs}, $1 s"
        while IFS=$'\t' read -r name outcome took line; do
            printf '%-10s %-8s %4d s  %s\n' "$name" "$outcome" "$took" "$line"
            sed 's/^/             /' "$W/$name.figures"
        done <"$W/steps"
        echo "$counts"
    } >"$OUT/gpu-report.txt"
    awk -v dir="$W" -v kind="${REHEARSE:+rehearsal}" -v seconds="$1" -f test/gpu/report.awk "$W/steps" >"$OUT/gpu-report.json"
    echo "$counts"
    [[ $counts = *" 0 failed"* ]] || exit 1
}
