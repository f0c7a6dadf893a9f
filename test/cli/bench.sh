#!/bin/bash
# Drives dpbench, and dptrain where it shows time: commands, files, refusals, exit codes. Nothing here depends on how fast the machine
# is. Usage: bench.sh [PATH OF dptrain], dpbench beside it. Last line: N passed, N failed.
root=$(cd "${DP_ROOT:-$(dirname "$0")/../..}" && pwd)
dptrain=$(realpath "${1:-$root/build/dptrain}") dpbench=$(dirname "$(realpath "${1:-$root/build/dptrain}")")/dpbench
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0
unset WORLD_SIZE SLURM_NTASKS OMPI_COMM_WORLD_SIZE PMI_SIZE

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $1"; sed 's/^/    /' out err 2>/dev/null | head -12; }
# check NAME CODE PHRASE COMMAND...: exit code, and the phrase on stderr for code 2 (otherwise on either)
check() {
    local name=$1 code=$2 phrase=$3 got
    shift 3
    "$@" >out 2>err
    got=$?
    if [ "$got" != "$code" ]; then bad "$name: exit code $got, wanted $code"; return; fi
    if [ "$code" = 2 ]; then grep -qF -e "$phrase" err; else cat out err | grep -qF -e "$phrase"; fi && ok || bad "$name: no \"$phrase\""
}
is() { if eval "$2"; then ok; else bad "$1"; fi; } # is NAME CONDITION
# Whole JSON: by whatever reads it here; at least the brackets must close.
json() {
    if command -v python3 >/dev/null; then python3 -m json.tool "$1" >/dev/null 2>err
    elif command -v jq >/dev/null; then jq . "$1" >/dev/null 2>err
    else awk '{ gsub(/"([^"\\]|\\.)*"/, "") ; s = s $0 } END { a = gsub(/[[{]/, "", s); b = gsub(/[]}]/, "", s); exit !(a && a == b) }' "$1"; fi
}
page() { # one file, whole, nothing fetched, no scripts
    head -c 15 "$1" | grep -q '<!doctype html>' && tail -c 20 "$1" | grep -q '</html>' && grep -q '<svg' "$1" && grep -q 'name="viewport"' "$1" &&
        grep -q 'prefers-color-scheme:dark' "$1" && ! grep -qiE '<script|<link|<img|https?://|@import|src=|nan|inf(inity)? ' "$1"
}

cat >mlp.ini <<INI
[run]
epochs = 2
log_every = 4
[devices]
threads = 1
[data]
format = synthetic
samples = 320
classes = 4
batch_size = 32
eval = last 20%
[model]
input = 12
fc1 = linear out=16 | relu | dropout p=0.2
fc2 = linear out=classes
[optimizer]
kind = sgd
lr = 0.1
momentum = 0.9
INI
few="--steps 12 --warmup 2"

# ---- command line ----
check "version" 0 "dpbench 0." "$dpbench" --version
check "help" 0 "dpbench imbalance CONFIG" "$dpbench" --help
check "help of a command" 0 "dpbench ladder" "$dpbench" ladder --help
check "no command" 2 "a command is missing" "$dpbench"
check "unknown command" 2 "unknown command race" "$dpbench" race mlp.ini
for c in speed imbalance ladder; do check "$c without a config" 2 "$c wants a configuration file" "$dpbench" $c; done
check "ops takes no config" 2 "what is this: mlp.ini" "$dpbench" ops mlp.ini
check "unknown option" 2 "--fast" "$dpbench" speed mlp.ini --fast
check "no steps" 2 "--steps" "$dpbench" ladder mlp.ini --steps 0
check "steps that are no number" 2 "--steps" "$dpbench" ladder mlp.ini --steps 1x
check "no devices" 2 "--devices" "$dpbench" speed mlp.ini --devices 1,0
check "missing file" 2 "no/such.ini" "$dpbench" imbalance no/such.ini
check "unknown key" 2 "optimizer.momentun" "$dpbench" imbalance mlp.ini optimizer.momentun=1
check "side without settings" 2 "--side" "$dpbench" imbalance mlp.ini --side alone
check "json that cannot be written" 2 "cannot write no/such.json" "$dpbench" imbalance mlp.ini $few --json no/such.json
check "page that cannot be written" 2 "cannot write no/such.html" "$dpbench" imbalance mlp.ini $few --html no/such.html

# ---- imbalance ----
check "imbalance" 0 "busy max/mean" "$dpbench" imbalance mlp.ini --devices 3 $few --json i.json --html i.html
is "classic: a row, three devices, four links, all of the master" '[ "$(grep -c "^classic " out)" = 8 ]'
for m in dp balanced ddp; do is "$m: a row, three devices, six links" "[ \$(grep -c '^$m ' out) = 10 ]"; done
is "equal work" 'grep -q "global batch 32, 276 parameters, seed 1; 12 steps in [0-9]* turns after 2 of warm-up" out'
is "nothing on stderr" '[ ! -s err ]'
is "json" 'json i.json && grep -q "\"refused\": \"\"" i.json && grep -q "\"of_ddp\": {\"classic\": [0-9]" i.json'
is "json: bytes of the busiest port" '[ "$(grep -o "\"busiest_port_bytes\": [1-9]" i.json | wc -l)" = 4 ]'
is "json: losses are equal" '[ "$(grep -o "\"last_loss\": [0-9.e-]*" i.json | sort -u | wc -l)" = 1 ]'
is "page" 'page i.html && grep -q "One step" i.html && grep -q "cpu:2" i.html && grep -q "Time on each link" i.html'
check "as configured" 0 "configured" "$dpbench" imbalance mlp.ini $few --devices 2 devices.reduce=tree
check "a preset is not measured twice" 0 "ddp" "$dpbench" imbalance mlp.ini $few --devices 2 devices.mode=balanced
is "four sides" '! grep -q configured out'
check "a side of one's own" 0 "clumsy" "$dpbench" imbalance mlp.ini $few --devices 2 --side "clumsy devices.mode=dp devices.scatter=master"
check "accumulation" 0 "balanced" "$dpbench" imbalance mlp.ini $few --devices 2 data.accumulate=2

# ---- what must not be compared ----
check "another batch" 2 "cannot be compared: the global batch is 32 in classic and 64 in big" "$dpbench" imbalance mlp.ini $few --side "big devices.mode=ddp data.batch_size=64"
is "nothing was printed" '[ ! -s out ]'
check "another seed" 2 "seed is 1 in classic and 7 in other" "$dpbench" imbalance mlp.ini $few --side "other run.seed=7"
check "other accumulation" 2 "accumulation is 1 in classic and 2 in other" "$dpbench" imbalance mlp.ini $few --side "other data.accumulate=2"
check "switches that exclude each other" 2 "odd: " "$dpbench" imbalance mlp.ini $few --side "odd devices.mode=ddp devices.reduce=tree"
check "other losses" 1 "No ratios: the loss of step" "$dpbench" imbalance mlp.ini $few --devices 2 --side "other optimizer.lr=0.5" --json r.json --html r.html
is "no ratio stands there" '! grep -q "%" out'
is "nor in the files" 'json r.json && ! grep -q of_ddp r.json && grep -q "\"refused\": \"the loss" r.json && ! grep -q "of ddp" r.html'

# ---- ladder, speed ----
check "ladder" 0 "balanced against ddp" "$dpbench" ladder mlp.ini --devices 2 $few --json l.json --html l.html
is "ladder: ten lines" '[ "$(grep -c "[0-9]x " out)" = 10 ]'
is "ladder: json" 'json l.json && [ "$(grep -o "\"gain\"" l.json | wc -l)" = 8 ]'
is "ladder: page" 'page l.html && grep -q "overlap = all" l.html'
check "speed" 0 "efficiency" "$dpbench" speed mlp.ini --devices 1,2 --seconds 0.1 --json s.json --html s.html
is "speed: json" 'json s.json && [ "$(grep -o "\"efficiency\": [0-9]" s.json | wc -l)" = 2 ]'
is "speed: page" 'page s.html'
if [ "${DP_SCALE:-short}" = full ]; then
    check "ops" 0 "conv2d" "$dpbench" ops --seconds 0.06 --json o.json --html o.html
    is "ops: json and page" 'json o.json && page o.html'
fi

# ---- what dptrain shows of time ----
use=devices.use=cpu:0,cpu:1
check "trace and report" 0 "epoch 2/2" "$dptrain" mlp.ini $use run.dir=a run.trace=step run.report=1 devices.mode=balanced
is "trace: json" 'json a/trace.json'
is "trace: a process a device, a thread a lane" '[ "$(grep -c process_name a/trace.json)" = 2 ] && [ "$(grep -c thread_name a/trace.json)" = 6 ]'
is "trace: every batch is there, of both devices" '[ "$(grep "\"name\":\"loss\"" a/trace.json | grep -o "\"pid\":[0-9]*.*\"step\":[0-9]*" | sort -u | wc -l)" = 32 ]'
is "trace: every arrow arrives" '[ "$(grep -c "\"ph\":\"s\"" a/trace.json)" -gt 0 ] && [ "$(grep -c "\"ph\":\"s\"" a/trace.json)" = "$(grep -c "\"ph\":\"f\"" a/trace.json)" ]'
is "trace: bytes and buckets" 'grep -q "\"name\":\"reduce\".*\"bucket\":0,\"bytes\":[1-9]" a/trace.json'
is "trace: no layers" '! grep -q "\"layer\"" a/trace.json'
is "report" 'page a/report.html && grep -q "Where the time went" a/report.html && grep -q "Evaluations" a/report.html'
check "layers" 0 "epoch 1/1" "$dptrain" mlp.ini $use run.dir=b run.trace=layer run.epochs=1
is "trace: layers" 'json b/trace.json && grep -q "\"name\":\"backward fc1\"" b/trace.json && [ ! -e b/report.html ]'
check "the first 200 batches" 0 "epoch 30/30" "$dptrain" mlp.ini $use run.dir=c run.trace=step run.epochs=30 run.report=1
is "no more of them" '[ "$(grep -o "\"step\":[0-9]*" c/trace.json | sort -u | wc -l)" = 200 ] && page c/report.html'
check "overwritten" 0 "epoch 1/1" "$dptrain" mlp.ini $use run.dir=c run.overwrite=1 run.epochs=1
is "old files are gone" '[ ! -e c/trace.json ] && [ ! -e c/report.html ]'
check "a report of one device" 0 "epoch 1/1" "$dptrain" mlp.ini devices.use=cpu:0 run.dir=d run.epochs=1 run.report=1
is "has no links" 'page d/report.html && ! grep -q "Links" d/report.html'

# Phases of an interval, data_wait among them, are its seconds (pauses for evaluation and saves left out).
check "phases" 0 "epoch 8/8" "$dptrain" mlp.ini $use run.dir=e run.epochs=8
is "phases add up to the interval, within 5 %" 'grep "\"type\":\"step\"" e/log.jsonl | awk "{
    match(\$0, /\"seconds\":[^,]*/); s = substr(\$0, RSTART + 10, RLENGTH - 10)
    match(\$0, /\"phases\":{[^}]*/); n = split(substr(\$0, RSTART + 10, RLENGTH - 10), p, /[:,]/); t = 0
    for (i = 2; i <= n; i += 2) t += p[i]
    if (t < 0.95 * s || t > 1.05 * s) { print s, t; wrong++ }
    lines++ } END { exit wrong > 0 || lines != 16 }"'
is "hints once a run at most" '[ "$(grep -c "Communication took longer" e/log.jsonl)" -le 1 ] && [ "$(grep -c "Waiting for data took" e/log.jsonl)" -le 1 ]'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
