#!/bin/bash
# The check for real GPUs, rehearsed on simulated ones: what its report says, a step that fails, and steps that are left out.
set -u
cd "${DP_ROOT:-.}" || exit 1
[ -z "${DP_SANITIZER:-}" ] || { echo "skipped gpu_check: under a sanitizer"; exit 0; }
[ -x "$DP_BUILD/test/cusim/test_cuda_ops" ] || { echo "skipped gpu_check: no tests on simulated GPUs were built"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
holds() # NAME, FILE, what it must hold
{
    if grep -qF -- "$3" "$2"; then echo "ok $1"; else
        echo "not ok $1: wanted \"$3\", found:"
        cat "$2"
        bad=1
    fi
}
B=$DP_BUILD test/gpu/check.sh --rehearse --only machine,build,devices,ops,compare,two,kill --out "$work" >"$work/out" 2>&1 || { cat "$work/out"; bad=1; }
holds "all steps are counted" "$work/gpu-report.txt" "6 passed, 0 failed, 0 slow, 1 skipped"
holds "it says that it is a rehearsal" "$work/gpu-report.txt" "a rehearsal on simulated GPUs"
holds "a step that is left out says why" "$work/gpu-report.json" '"name": "kill", "outcome": "skipped"'
holds "one GPU stands for two" "$work/gpu-report.txt" "the bytes of one device, on one GPU as two"
holds "figures are in the report for programs" "$work/gpu-report.json" '"figures": {"passed": 3}'
CUSIM_FAULTS=lt:none B=$DP_BUILD test/gpu/check.sh --rehearse --only devices,two,ops --out "$work" >"$work/out" 2>&1 &&
    { echo "not ok a failure is not told by the exit code"; bad=1; }
holds "a failure does not end the others" "$work/gpu-report.txt" "1 passed, 2 failed, 0 slow, 0 skipped"
holds "a failure says what" "$work/gpu-report.txt" "one device does not train"

# What only a real GPU has, with a fake nvidia-smi that sees the memory of the one training: the step kill passes when it is given back.
mkdir -p "$work/fake/bin" "$work/b"
cat >"$work/fake/bin/nvidia-smi" <<'END'
#!/bin/bash
alive() { kill -0 "$(cat "$FAKE/pid" 2>/dev/null)" 2>/dev/null; }
case $* in
*memory.used*) if alive; then echo 600; else echo 100; fi ;;
*compute-apps*) ! alive || cat "$FAKE/pid" ;;
*) echo 0 ;;
esac
END
# shellcheck disable=SC2016 # the fake expands them
printf '#!/bin/bash\necho $$ >"$FAKE/pid"\nexec "%s/test/cusim/dptrain" "$@"\n' "$(realpath "$DP_BUILD")" >"$work/b/dptrain"
chmod +x "$work/fake/bin/nvidia-smi" "$work/b/dptrain"
real() { FAKE=$work/fake PATH=$work/fake/bin:$PATH CUDA_HOME=$work/fake B=$work/b NO_ONEDNN='' test/gpu/check.sh --only kill --out "$work" >"$work/out" 2>&1; }
real || { cat "$work/out" "$work/gpu-kill.log"; bad=1; }
holds "memory that is given back" "$work/gpu-report.txt" "100 MB, 600 MB while it trained, 100 MB after SIGKILL"
printf '#!/bin/bash\nexit 3\n' >"$work/b/dptrain"
real && { echo "not ok a training that ends by itself was not killed"; bad=1; }
holds "a training that ends by itself" "$work/gpu-report.txt" "the training ended before it was killed"
exit $bad
