#!/bin/bash
# Which devices are chosen, and one clear line where GPUs cannot be: with a fake driver and fake plugins, on any machine.
set -u
cd "${DP_ROOT:-.}" || exit 1
dptrain=$(realpath "${1:-build/dptrain}")
[ -z "${DP_SANITIZER:-}" ] || { echo "skipped cuda: the fakes are built without a sanitizer"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-gcc}
flags="-std=c11 -D_GNU_SOURCE -O1 -shared -fPIC -fvisibility=hidden"
base="nn/cuda_driver.c dp/base/base.c dp/base/error.c dp/base/memory.c dp/base/text.c"
mkdir "$work/driver" "$work/other" "$work/broken" "$work/good"
$cc -std=c11 -shared -fPIC -o "$work/driver/libcuda.so.1" test/cli/cuda/driver.c || exit 1
$cc $flags -o "$work/good/libdpcuda.so" test/cli/cuda/plugin.c $base || exit 1
$cc $flags -DFAKE_ABI=1 '-DFAKE_VERSION="0.0.1"' -o "$work/other/libdpcuda.so" test/cli/cuda/plugin.c $base || exit 1
echo 'int dp_cudnn_of_tests(void); int dp_cudnn_of_tests(void) { return 0; }' | $cc -shared -fPIC -x c -o "$work/libabsent.so.9" - || exit 1
$cc $flags -Wl,--no-as-needed -o "$work/broken/libdpcuda.so" test/cli/cuda/plugin.c $base -L"$work" -l:libabsent.so.9 || exit 1
rm "$work/libabsent.so.9"
echo 'int nothing;' | $cc -shared -fPIC -x c -o "$work/strange.so" - || exit 1

unset CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER DP_CUDA_PLUGIN
bad=0
# name, what the output must hold (or "!text": must not), then the command's environment and arguments
expect()
{
    local name=$1 want=$2
    shift 2
    env "$@" > "$work/out" 2>&1
    if [ "${want:0:1}" = "!" ]; then
        if grep -qF -- "${want:1}" "$work/out"; then echo "not ok $name: found \"${want:1}\""; head -n 5 "$work/out"; bad=1; else echo "ok $name"; fi
    elif grep -qF -- "$want" "$work/out"; then
        echo "ok $name"
    else
        echo "not ok $name: wanted \"$want\", found:"
        head -n 5 "$work/out"
        bad=1
    fi
}
printf '%s\n' '[data]' 'format = synthetic' 'samples = 64' 'batch_size = 32' '[model]' 'input = 8' 'fc = linear out=classes' \
    '[loss]' 'kind = cross_entropy' '[optimizer]' 'kind = sgd' 'lr = 0.1' > "$work/net.ini"
net=("$work/net.ini" "run.dir=$work/run" run.overwrite=1)
gpus() { expect "$1" "$2" LD_LIBRARY_PATH="$work/driver" DP_CUDA_PLUGIN="$work/good/libdpcuda.so" FAKE_ARCHS=90,90 "${@:4}" "$dptrain" "${net[@]}" "devices.use=$3"; }

# the list (P74)
gpus "an index that is not there" "devices.use, column 3: cuda:9 is not among the 2 visible GPUs" 0,9
gpus "a duplicate" "cuda:0 is a duplicate" cuda:0,0
gpus "a negative index" "column 1" -1
gpus "text behind a number" "column 3" 0,1x
gpus "an empty item" "column 3" 0,,1
gpus "a range" "column 1" 0-2
gpus "an empty list" "the value is empty" ""
gpus "all among others" "column 3" 0,all
gpus "two kinds" "column 7: CPU devices and GPUs do not mix" cpu:0,cuda:0
gpus "the order is kept (P73)" "The fake device 1 was to be opened" 1,0
gpus "blanks" "The fake device 0 was to be opened" " 0 , 1 "
gpus "all" "The fake device 0 was to be opened" all
gpus "auto takes GPUs" "The fake device 0 was to be opened" auto
gpus "different cards (P73)" "CUDA_DEVICE_ORDER=PCI_BUS_ID" 0,1 FAKE_NAMES=Small,Large
gpus "different cards in bus order" "!CUDA_DEVICE_ORDER=PCI_BUS_ID" 0,1 FAKE_NAMES=Small,Large CUDA_DEVICE_ORDER=PCI_BUS_ID
gpus "MIG" "of MIG instances a process sees only one" 0,1 FAKE_ARCHS=80 "FAKE_NAMES=NVIDIA A100 MIG 1g.5gb"

# what cannot be used (P76, P77)
gpus "architecture" "cuda:1 (0000:42:00.0, GPU) (sm_61) is not covered by this build (sm_80, sm_90" 0,1 FAKE_ARCHS=90,61
gpus "auto goes round it" "cuda:1 (0000:42:00.0, GPU) (sm_61) is not covered" auto FAKE_ARCHS=90,61
gpus "a later architecture by PTX" "The fake device 0 was to be opened" 0 FAKE_ARCHS=130
gpus "driver older than the runtime" "it is for CUDA 12.8, this build for 13.0" 0 FAKE_DRIVER=12080
gpus "compute mode" "its compute mode is prohibited" 0 FAKE_MODE=2
gpus "none visible" "No GPU is visible because CUDA_VISIBLE_DEVICES is set to empty" 0 CUDA_VISIBLE_DEVICES=
gpus "none there" "the driver finds none" 0 FAKE_INIT=100
gpus "hidden by a list" 'CUDA_VISIBLE_DEVICES is set to "7"' 0 FAKE_INIT=100 CUDA_VISIBLE_DEVICES=7
gpus "the toolkit's stub" "is the toolkit's stub" 0 FAKE_INIT=34
gpus "driver and module differ" "restart after the driver's update" 0 FAKE_INIT=803
gpus "fabric manager" "is the fabric manager running" all FAKE_INIT=802
gpus "driver that does not start" "CUDA error 999" all FAKE_INIT=999
gpus "no GPUs, auto" "!wants GPUs" auto FAKE_INIT=100

# the plugin
gpus "plugin of another version" "is of version 0.0.1 (interface 1)" 0 DP_CUDA_PLUGIN="$work/other/libdpcuda.so"
gpus "plugin without its libraries" "libabsent.so.9" 0 DP_CUDA_PLUGIN="$work/broken/libdpcuda.so"
gpus "plugin that is none" "it lacks the symbol dp_cuda_plugin" 0 DP_CUDA_PLUGIN="$work/strange.so"
gpus "plugin that is not there" "cannot be loaded" 0 DP_CUDA_PLUGIN="$work/nowhere.so"
gpus "auto without its plugin" "This machine has 2 GPUs, which cannot be used" auto DP_CUDA_PLUGIN="$work/nowhere.so"
mkdir "$work/bin"
cp "$dptrain" "$work/bin/dptrain"
beside() { expect "$1" "$2" LD_LIBRARY_PATH="$work/driver" FAKE_ARCHS=90,90 "$work/bin/dptrain" "${@:3}"; }
[ -e /usr/local/lib/libdpcuda.so ] || beside "no plugin" "libdpcuda.so is neither beside this program nor in" "${net[@]}" devices.use=0
cp "$work/good/libdpcuda.so" "$work/bin/"
beside "beside the program" "The fake device 0 was to be opened" "${net[@]}" devices.use=0
mkdir "$work/lib"
mv "$work/bin/libdpcuda.so" "$work/lib/"
beside "in ../lib" "The fake device 0 was to be opened" "${net[@]}" devices.use=0
beside "the list of devices" "cuda:1   GPU, 8.6 GB, 42 units, pci 0000:42:00.0, GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1" --devices
beside "help" "dptrain" --help
beside "version" "0." --version
expect "devices of a machine without a driver" "cpu:0" "$work/bin/dptrain" --devices
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
    expect "no driver" "devices.use = 0 wants GPUs. No GPU driver: libcuda.so.1 was not found." "$work/bin/dptrain" "${net[@]}" devices.use=0
    expect "CPU without a driver" "epoch" "$work/bin/dptrain" "${net[@]}" devices.use=auto
fi
expect "CPU beside GPUs" "!fake" LD_LIBRARY_PATH="$work/driver" FAKE_ARCHS=90 "$work/bin/dptrain" "${net[@]}" devices.use=cpu:0 --check
exit $bad
