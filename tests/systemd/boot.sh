# Run by machine.py in new mount, cgroup, pid, uts, ipc and net namespaces: makes a root of its own and becomes systemd.
#   $1 scratch folder, empty    $2 source tree    $3 site-packages    $4 prefix of the Python to install on
# The root is an overlay of /: what is written lands in a tmpfs and goes with the namespaces. /proc/sys and /sys are
# read-only, so that nothing in it can change the host. V1: cgroup v1 controllers that the host has.
set -euo pipefail
state=$1 source=$2 packages=$3 python=$4

mount -t tmpfs -o mode=755 tmpfs "$state"
mkdir "$state/upper" "$state/work" "$state/root"
root=$state/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$state/upper,workdir=$state/work" "$root"
echo orind-test >"$root/etc/hostname"

mount -t proc proc "$root/proc"
mount -o bind,ro "$root/proc/sys" "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
# not the cpu controller: with real-time group scheduling its children have no budget for FIFO
for controller in $V1; do
    mkdir "$root/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "$root/sys/fs/cgroup/$controller"
done
mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"

# below /opt, because the unit's user reaches no home directory (ProtectHome)
for place in source packages python; do
    mkdir -p "$root/opt/test/$place"
    mount -o bind,ro "${!place}" "$root/opt/test/$place"
done
# the interpreter's own library, which its run path may name below a home directory
echo /opt/test/python/lib >"$root/etc/ld.so.conf.d/000-test.conf"
chroot "$root" ldconfig
mkdir "$root/run/upper"
mount -o bind,ro "$state/upper" "$root/run/upper"

rm -rf "$root"/etc/systemd/system/*.wants "$root/etc/fstab" "$root/var/log/journal"
: >"$root/etc/machine-id"
mkdir -p "$root/var/log"
for unit in $MASKED; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

ip link set lo up
cd "$root"
mkdir -p oldroot
pivot_root . oldroot
umount -l /oldroot
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=orind /lib/systemd/systemd --system --unit=multi-user.target \
    --show-status=no --log-target=journal
