#!/bin/bash
# Drives dptrain as a user does: messages, exit codes, files, signals. Usage: train.sh [PATH OF dptrain]. Last line: N passed, N failed.
root=$(cd "${DP_ROOT:-$(dirname "$0")/../..}" && pwd)
dptrain=$(realpath "${1:-$root/build/dptrain}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" && work=$(pwd -P) || exit 1
passed=0 failed=0
unset WORLD_SIZE SLURM_NTASKS OMPI_COMM_WORLD_SIZE PMI_SIZE

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $1"; sed 's/^/    /' out err 2>/dev/null | head -12; }
# check NAME CODE PHRASE ARGS...: exit code, and the phrase on stderr for code > 0 (stdout for 0); "" = any
check() {
    local name=$1 code=$2 phrase=$3 got
    shift 3
    "$dptrain" "$@" >out 2>err
    got=$?
    if [ "$got" != "$code" ]; then bad "$name: exit code $got, wanted $code"; return; fi
    [ -z "$phrase" ] && { ok; return; }
    if [ "$code" = 0 ]; then grep -qF -e "$phrase" out; else grep -qF -e "$phrase" err; fi && ok || bad "$name: no \"$phrase\""
}
is() { if eval "$2"; then ok; else bad "$1"; fi; } # is NAME CONDITION

mkdir cfg
cat >cfg/mlp.ini <<INI
[run]
epochs = 2
log_every = 1
[devices]
use = cpu:0,cpu:1
threads = 1
[data]
format = synthetic
samples = 320
classes = 4
batch_size = 32
eval = last 20%
[model]
input = 12
fc1 = linear out=16 | relu
fc2 = linear out=classes
[optimizer]
kind = sgd
lr = 0.1
momentum = 0.9
INI

# ---- what needs no training ----
check "version" 0 "dptrain 0." --version
check "help" 0 "usage: dptrain CONFIG" --help
check "keys" 0 "optimizer.lr" --keys
check "devices" 0 "cpu:0" --devices
check "links" 0 "cpu:2      memory" --devices --measure devices.use=cpu:0,cpu:2,cpu:1
is "a row and a column each" '[ "$(grep -c "^cpu:.* memory .*B/s" out)" = 3 ]'
check "links with a configuration" 0 "2 devices" cfg/mlp.ini --devices --measure
check "links of what is not there" 2 "duplicate" --devices --measure devices.use=cpu:0,cpu:0
check "measure alone" 2 "--measure goes with --devices" --measure
check "check" 0 "fc1" cfg/mlp.ini --check
is "check shows parameters" 'grep -q "276" out' # 12 x 16 + 16 + 16 x 4 + 4
is "check writes nothing" '[ ! -e runs ]'

# ---- command line and configuration: code 2, one clear message, nothing on the disk ----
check "no config" 2 "configuration file is missing"
check "unknown option" 2 "--wrong" cfg/mlp.ini --wrong
check "two configs" 2 "b.ini" cfg/mlp.ini b.ini
check "option without file" 2 "--eval needs" cfg/mlp.ini --eval
check "predict without weights" 2 "--predict needs weights" cfg/mlp.ini --predict out.csv
check "missing file" 2 "no/such.ini" no/such.ini
check "unknown key" 2 "momentun" cfg/mlp.ini optimizer.momentun=0.9
check "not a number" 2 "0,1" cfg/mlp.ini optimizer.lr=0,1
check "out of range" 2 "batch_size" cfg/mlp.ini data.batch_size=0
check "device list" 2 "cpu:x" cfg/mlp.ini devices.use=cpu:0,cpu:x
check "device twice" 2 "cpu:0" cfg/mlp.ini devices.use=cpu:0,cpu:0
check "no such data" 2 "nowhere" cfg/mlp.ini data.format=idx data.train=nowhere
check "run.dir is a file" 2 "Not a directory" cfg/mlp.ini run.dir=cfg/mlp.ini
sed 's/lr = 0.1/lr = fast/; s/epochs = 2/epohcs = 2/' cfg/mlp.ini >cfg/two.ini
check "two errors in a file" 2 "epohcs" cfg/two.ini
is "both are shown" 'grep -q "two.ini:2" err && grep -q "fast" err'
check "errors of file and command line together" 2 "epohcs" cfg/two.ini optimizer.momentun=1
is "the command line's, too" 'grep -q "momentun.*did you mean optimizer.momentum" err'
sed 's/^lr = .*//' cfg/mlp.ini >cfg/nolr.ini
check "no learning rate" 2 "optimizer.lr" cfg/nolr.ini
sed 's/out=classes/out=3/' cfg/mlp.ini >cfg/few.ini
check "too few outputs" 2 "4 classes" cfg/few.ini
sed 's/input = 12/input = 3x4x4/; s/format = synthetic/format = csv\ntrain = t.csv\nlabel = last/; s/eval = .*//; s/fc1 = linear/fc1 = flatten | linear/' cfg/mlp.ini >cfg/shape.ini
for i in 1 2 3 4 5 6 7 8; do echo "1.0,2.0,$((i % 4))"; done >cfg/t.csv
check "input shape" 2 "3x4x4" cfg/shape.ini
for v in WORLD_SIZE SLURM_NTASKS OMPI_COMM_WORLD_SIZE PMI_SIZE; do
    export $v=4
    check "$v = 4" 2 "one process that drives all devices; start one task, or set mode = ddp" cfg/mlp.ini
    export $v=1
done
is "nothing was created" '[ "$(ls)" = "$(printf "cfg\nerr\nout")" ]'

# ---- training ----
check "trains" 0 "epoch 2/2" cfg/mlp.ini
is "start line" 'grep -q "batch: global 32, per device 16; lr 0.1; 8 steps per epoch, 16 in all" out'
is "a line a step" '[ "$(grep -c "^step " out)" = 16 ]'
is "evaluation counts all samples" 'grep -q "evaluation loss .* accuracy .* 64 samples" out'
is "a row a device" 'grep -q "^cpu:0 .* peak\|^cpu:0" out && grep -q "^cpu:1" out'
is "nothing on stderr" '[ ! -s err ]'
is "run directory" '[ "$(ls runs/mlp)" = "$(printf "best.safetensors\nconfig.ini\nlast.safetensors\nlog.jsonl\nstate-00000008.safetensors\nstate-00000016.safetensors")" ]'
is "log lines" '[ "$(grep -c "\"type\":\"step\"" runs/mlp/log.jsonl)" = 16 ]'
check "next free suffix" 0 "run directory: runs/mlp-2" cfg/mlp.ini run.steps=2
check "quiet" 0 "" cfg/mlp.ini run.steps=1 run.dir=q --quiet
is "quiet prints nothing" '[ ! -s out ] && [ ! -s err ]'
check "holds a run" 2 "already holds a run" cfg/mlp.ini run.dir=runs/mlp
check "overwrite" 0 "epoch 1/1" cfg/mlp.ini run.dir=q run.overwrite=1 run.epochs=1
check "the resolved config trains" 0 "epoch 2/2" runs/mlp/config.ini run.dir=again
is "and to the same bytes" 'cmp -s runs/mlp/last.safetensors again/last.safetensors'
LC_ALL=de_DE.UTF-8 "$dptrain" cfg/mlp.ini run.dir=de >out 2>err
is "another locale, the same bytes" 'cmp -s runs/mlp/last.safetensors de/last.safetensors'
check "uneven split is told" 0 "they take 11, 11, 10 samples" cfg/mlp.ini devices.use=cpu:0,cpu:1,cpu:2 run.steps=1
check "idle devices" 0 "" cfg/mlp.ini data.batch_size=2 devices.use=cpu:0,cpu:1,cpu:2 run.steps=1
is "idle devices are named" 'grep -q "cpu:2 gets no samples" err'
check "effective batch and rate" 0 "per device 16 x 4 accumulated = 128 a step; lr 0.4 (0.1 x 128 / 32)" cfg/mlp.ini data.accumulate=4 optimizer.lr_base_batch=32 run.steps=1

# ---- weights ----
check "eval" 0 "64 samples" cfg/mlp.ini --eval runs/mlp/last.safetensors
check "eval of a state" 0 "64 samples" cfg/mlp.ini --eval runs/mlp/state-00000016.safetensors
check "eval of no weights" 2 "cfg/mlp.ini" cfg/mlp.ini --eval cfg/mlp.ini
check "eval of another model" 2 "fc2.weight is [4,16], wanted [5,16]" cfg/mlp.ini --eval runs/mlp/last.safetensors data.classes=5
sed '/^eval = /d; s/input = 12/input = 2/; s/format = synthetic/format = csv\ntrain = t.csv/; /^samples\|^classes/d' cfg/mlp.ini >cfg/noeval.ini
check "train without an evaluation set" 0 "epoch 1/1" cfg/noeval.ini run.dir=csv run.epochs=1
check "eval without a set" 2 "There is no evaluation set" cfg/noeval.ini --eval csv/last.safetensors
check "predict without a set" 2 "needs an evaluation set" cfg/noeval.ini run.init_from=csv/last.safetensors --predict x.csv
check "predict" 0 "outputs of 64 samples" cfg/mlp.ini --eval runs/mlp/last.safetensors --predict p.csv
is "one row a sample, after the header" '[ "$(wc -l <p.csv)" = 65 ] && head -1 p.csv | grep -q "^sample,largest,output0,output1,output2,output3$"'
check "predict npy" 0 "outputs of 64 samples" cfg/mlp.ini run.init_from=runs/mlp/last.safetensors --predict p.npy
is "npy size" '[ "$(stat -c %s p.npy)" = $((128 + 64 * 4 * 4)) ]'
check "predict nowhere" 1 "no/p.csv" cfg/mlp.ini --eval runs/mlp/last.safetensors --predict no/p.csv

# ---- resume ----
check "first half" 0 "epoch 1/1" cfg/mlp.ini run.dir=half run.epochs=1
check "second half" 0 "Going on from $work/half/state-00000008.safetensors" cfg/mlp.ini run.dir=half --resume
is "equals the straight run" 'cmp -s runs/mlp/last.safetensors half/last.safetensors'
check "from weights only" 2 "holds weights only; use init_from, or resume from $work/half/state-00000016.safetensors" cfg/mlp.ini run.dir=half run.resume=half/last.safetensors
check "another batch" 2 "data.batch_size was 32 and is 16" cfg/mlp.ini run.dir=half --resume data.batch_size=16
check "another optimizer" 2 "sgd" cfg/mlp.ini run.dir=half --resume optimizer.kind=adam
check "another number of devices" 0 "saved with 2 devices, this run has 1" cfg/mlp.ini run.dir=half --resume devices.use=cpu:0 run.epochs=3
check "nothing to resume" 0 "holds no state yet" cfg/mlp.ini run.dir=fresh --resume run.steps=1

# ---- not finite: code 3, no state after the last good step ----
check "loss explodes" 3 "" cfg/mlp.ini run.dir=nan optimizer.lr=1e6 run.epochs=50 run.save_every=1
step=$(grep '"type":"step"' nan/log.jsonl | tail -1 | sed 's/.*"step":\([0-9]*\),.*/\1/')
is "the newest state is of the last good step" '[ -n "$step" ] && ls nan/state-* | tail -1 | grep -q "0$step.safetensors"'

check "on_nan = warn goes on" 0 "epoch 2/2" cfg/mlp.ini run.dir=nanwarn optimizer.lr=1e6 run.on_nan=warn
is "skipped updates are logged" 'grep -q "\"skipped\":1" nanwarn/log.jsonl && grep -q "\"type\":\"warn\"" nanwarn/log.jsonl'
check "and such a state resumes" 0 "epoch 3/3" cfg/mlp.ini run.dir=nanwarn optimizer.lr=1e6 run.on_nan=warn run.epochs=3 --resume

# ---- a disk that is full ----
sed 's/out=16/out=2000/' cfg/mlp.ini >cfg/big.ini
(ulimit -f 64; exec "$dptrain" cfg/big.ini run.dir=full >out 2>err); code=$?
is "a save that fails ends the run with 1" '[ $code = 1 ] && grep -q "full/best.safetensors\|full/state-00000008.safetensors" err'
is "no half file stays" '[ -z "$(ls full | grep -v "config.ini\|log.jsonl")" ]'
(ulimit -f 64; exec "$dptrain" cfg/big.ini run.dir=full2 run.on_save_error=warn >out 2>err); code=$?
is "on_save_error = warn goes on" '[ $code = 0 ] && grep -q "warning: Not saved at step 16" err && grep -q "\"type\":\"warn\"" full2/log.jsonl'

# ---- signals ----
sleep_for_step() { for _ in $(seq 200); do grep -q '"type":"step"' "$1/log.jsonl" 2>/dev/null && return; sleep 0.05; done; }
stop_with() { # SIGNAL DIR
    "$dptrain" cfg/mlp.ini run.dir=$2 run.steps=100000000 run.save_every=0 eval.every=0 run.log_every=1 --quiet >out 2>err &
    pid=$!
    sleep_for_step $2
    kill -$1 $pid
    wait $pid
}
stop_with TERM term; code=$?
is "SIGTERM: 143" '[ $code = 143 ]'
is "a state was saved" 'ls term/state-*.safetensors >/dev/null && [ ! -e term/lock ]'
is "the end is logged" 'tail -1 term/log.jsonl | grep -q "\"type\":\"end\",\"reason\":\"Stopped at step"'
n=$(ls term/state-* | sed 's/.*-0*//; s/\..*//')
check "goes on after it" 0 "at step $n" cfg/mlp.ini run.dir=term --resume run.steps=$((n + 3))
# background jobs of a shell ignore SIGINT unless they set it: dptrain does
stop_with INT int; code=$?
is "SIGINT: 130" '[ $code = 130 ]'

"$dptrain" cfg/mlp.ini run.dir=first run.steps=100000000 run.save_every=0 eval.every=0 --quiet >/dev/null 2>&1 &
pid=$!
sleep_for_step first
check "second run in the same directory" 2 "process $pid (lock file $work/first/lock)" cfg/mlp.ini run.dir=first --resume
kill -KILL $pid; wait $pid 2>/dev/null
check "the lock of a killed run" 0 "epoch 1/1" cfg/mlp.ini run.dir=first run.overwrite=1 run.epochs=1

# killed at any moment, saving all the time: the newest state loads, what the kill left is swept
for delay in 0.05 0.11 0.17 0.23 0.29; do
    "$dptrain" cfg/mlp.ini run.dir=killed run.steps=100000000 run.save_every="1 step" eval.every=0 --quiet --resume >/dev/null 2>&1 &
    pid=$!
    sleep $delay
    kill -KILL $pid; wait $pid 2>/dev/null
done
touch killed/state-99999999.safetensors.tmp-1-0
n=$(ls killed/state-*.safetensors 2>/dev/null | tail -1 | sed 's/.*-0*//; s/\..*//')
check "resumes after kills" 0 "" cfg/mlp.ini run.dir=killed --resume run.steps=$((${n:-0} + 1))
is "no temporaries stay" '! ls killed | grep -q tmp'

{ "$dptrain" cfg/mlp.ini run.dir=pipe; echo $? >code; } 2>err | head -1 >out
for _ in $(seq 100); do [ -s code ] && break; sleep 0.05; done
is "a closed stdout does not end the run" '[ "$(cat code)" = 0 ] && [ -e pipe/state-00000016.safetensors ]'

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
