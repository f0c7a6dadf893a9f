#!/bin/bash
# Settles on a machine with real GPUs what no simulator can, within 8 minutes and without a network; README.md beside it says more.
#   test/gpu/check.sh [--rehearse] [--out DIR] [--only STEP,...] [--seconds ALL]
#   DEPS=DIR CUDA_HOME=DIR CUDNN=DIR PYTHON=PROGRAM B=BUILD-DIRECTORY       exit code: 0 when no step failed
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.." || exit 1
# shellcheck source=test/gpu/steps.sh
. "$here/steps.sh"
if [ "${1:-}" = --step ]; then # this script calls itself, so that a time limit ends all of a step
    "step_$2"
    exit
fi
export REHEARSE='' OUT=. W B=${B:-build/gpu} PYTHON=${PYTHON:-python3} DEPS=${DEPS:-}
only='' seconds=470
while [ $# -gt 0 ]; do
    case $1 in
    --rehearse) REHEARSE=1; shift ;;
    --out) OUT=${2:?}; shift 2 ;;
    --only) only=,${2:?},; shift 2 ;;
    --seconds) seconds=${2:?}; shift 2 ;;
    *) sed -n 's/^#   //p' "$here/check.sh" >&2; exit 2 ;;
    esac
done
mkdir -p "$OUT" "$B" || exit 1
OUT=$(cd "$OUT" && pwd) B=$(cd "$B" && pwd)
W=$(mktemp -d) || exit 1
trap 'rm -rf "$W"' EXIT
unset MAKEFLAGS MAKELEVEL MFLAGS
surroundings
begin=$SECONDS
: >"$W/steps"

# step NAME EXPECTED LIMIT: beyond EXPECTED seconds it is slow, at LIMIT it is ended. A step exits with 0 passed, 77 skipped, else failed.
step()
{
    local name=$1 limit=$3 code outcome note at=$SECONDS left=$((seconds - (SECONDS - begin)))
    [ -z "$only" ] || [[ $only = *,$name,* ]] || return
    [ "$limit" -le "$left" ] || limit=$left
    : >"$W/$name.note"
    : >"$W/$name.figures"
    if [ "$limit" -lt 2 ]; then
        code=77
        echo "no time left" >"$W/$name.note"
    else
        timeout -k 3 "$limit" "$here/check.sh" --step "$name" >"$OUT/gpu-$name.log" 2>&1 </dev/null
        code=$?
    fi
    note=$(tail -n 1 "$W/$name.note")
    case $code in
    0) outcome=passed ;;
    77) outcome=skipped ;;
    124 | 137) outcome=failed note="ended at its limit of $limit s" ;;
    *) outcome=failed note=${note:-exit code $code, see gpu-$name.log} ;;
    esac
    if [ "$outcome" = passed ] && [ $((SECONDS - at)) -gt "$2" ] && [ -z "$REHEARSE" ]; then outcome=slow; fi
    printf '%s\t%s\t%s\t%s\n' "$name" "$outcome" $((SECONDS - at)) "$note" >>"$W/steps"
    printf '%-10s %-8s %4d s  %s\n' "$name" "$outcome" $((SECONDS - at)) "$note"
}

step machine 5 20
step build 120 200
step devices 5 20
step ops 30 60
step compare 60 90
step two 20 60
step transports 20 60
step demo 30 60
step kill 20 60
step kernels 45 80
step speed 60 100
step pytorch 60 100
step sanitizer 45 80
report $((SECONDS - begin))
