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
header() { echo "#include <$1>" | ${CC:-gcc} -E -x c - >/dev/null 2>&1; }
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
    if [ -n "$REHEARSE" ]; then
        P=$B/test/cusim
        return
    fi
    [ -n "$CUDA_HOME" ] || CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    if [ -z "$CUDNN" ] && ! CPATH=$CUDA_HOME/include${CPATH:+:$CPATH} header cudnn.h; then CUDNN=$(python_at nvidia.cudnn); fi
    LD_LIBRARY_PATH=${CUDNN:+$CUDNN/lib:}$CUDA_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
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
    local archs
    if [ -n "$REHEARSE" ]; then
        make B="$B" "$B/test/cusim/dptrain" "$B/test/cusim/dpbench" "$B/test/cusim/test_cuda_ops" || fail "the rehearsal does not build"
        return
    fi
    archs=$(smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -u | tr '\n' ' ')
    make B="$B" CUDA_HOME="$CUDA_HOME" ${CUDNN:+CUDNN="$CUDNN"} CUDA_ARCHS="$archs" programs cuda || fail "the programs do not build"
    # The op table's test finds the plugin beside the program, as dptrain does; it needs nothing of the simulator.
    if header cmocka.h || echo '#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>' | ${CC:-gcc} -E -x c - >/dev/null 2>&1; then
        make B="$B" "$B/test/gpu/test_cuda_ops" || fail "the test of the op table does not build"
    fi
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
    local m far='' steps=5
    local -a settings
    [ -z "$REHEARSE" ] || { MODELS="mlp lenet" steps=2; }
    for m in $MODELS; do
        mapfile -t settings < <(model "$m")
        for d in cpu:0 cuda:0; do
            "$P/dptrain" "${settings[@]}" devices.use=$d devices.tf32=off run.steps=$steps run.log_every=1 data.batch_size=16 data.accumulate=1 \
                run.dir="$W/$m-${d%:0}" run.overwrite=1 --quiet || fail "$m does not train on $d"
        done
        figure "$m" "$(paste <(losses "$W/$m-cuda/log.jsonl") <(losses "$W/$m-cpu/log.jsonl") | awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > most) most = d } END { printf "%.2g", NR ? most : 1 }')"
        awk -v m="$m" '$1 == m { exit !($2 > 1e-3) }' "$W/$STEP.figures" && far="$far $m"
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
    local t ran=''
    two_devices one devices.use=cuda:0 || fail "one device does not train"
    for t in host auto copy peer; do
        if ! two_devices "transport-$t" devices.use=cuda:0,cuda:1 devices.mode=balanced devices.transport=$t 2>"$W/refused"; then
            cat "$W/refused"
            case $t in host | auto) fail "transport $t: $(head -n 1 "$W/refused")" ;; esac
            figure $t refused
            continue
        fi
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
    [ -n "$REHEARSE" ] || awk -v a="${accuracy:-0}" 'BEGIN { exit !(a > 0.84) }' || fail "accuracy ${accuracy:-none}; wanted above 0.84"
    note "lenet's accuracy ${accuracy:-none}"
}

# Memory of the GPU before a training that is killed, and after.
step_kill()
{
    local before after pid
    [ -z "$REHEARSE" ] || skip "a simulated GPU ends with its process"
    before=$(smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0)
    "$P/dptrain" tools/configs/lenet.ini devices.use=cuda:0 run.epochs=1000 run.dir="$W/kill" run.overwrite=1 --quiet &
    pid=$!
    sleep 6
    kill -KILL $pid && wait $pid 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        after=$(smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0)
        [ "$after" -gt $((before + 16)) ] || break
        sleep 1
    done
    figure before_mb "$before"
    figure after_mb "$after"
    [ "$after" -le $((before + 16)) ] || fail "$before MB in use before, $after MB after SIGKILL"
}

step_speed()
{
    local m rate
    local -a settings
    [ -z "$REHEARSE" ] || MODELS=mlp
    for m in $MODELS; do
        mapfile -t settings < <(model "$m")
        "$P/dpbench" speed "${settings[@]}" devices.use=all data.accumulate=1 --devices 1 --seconds "${REHEARSE:+0.2}${REHEARSE:-2}" --json "$W/$m.json" || fail "dpbench speed $m"
        rate=$(sed -n 's/.*"samples_per_s": \([0-9.e+]*\).*/\1/p' "$W/$m.json" | head -n 1)
        figure "$m" "${rate:-none}"
    done
    [ -z "$REHEARSE" ] && [ "$(gpus)" -ge 2 ] && "$P/dpbench" imbalance tools/configs/resnet18.ini devices.use=all --steps 20 --json "$OUT/gpu-imbalance.json"
    note "samples/s of $MODELS"
}

step_pytorch()
{
    local m rate
    "$PYTHON" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || skip "no PyTorch with a GPU for $PYTHON"
    for m in $MODELS; do
        rate=$(DEVICE=cuda "$PYTHON" bench/peers/torch_speed.py "$m" 1 2 | awk '{ print $1 }') || fail "PyTorch does not train $m"
        figure "$m" "${rate:-none}"
    done
    note "samples/s of $MODELS"
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
