# Run by service.py in new mount, pid and net namespaces: makes a simulated board of this machine, and becomes jtop's service.
#   $1 scratch folder, empty    $2 tree of the board (power/plant)    $3 Python to run it with    $4 its PYTHONPATH
#   $5... paths that must be seen inside
# The root is an overlay of /, whose writes land in a tmpfs and go with the namespaces. /sys is the board's, live; of
# /proc, /etc, /usr and /var what the board has. /dev has nothing of this machine's buses: jtop would ask its EEPROMs.
set -euo pipefail
state=$1 board=$2 python=$3 path=$4
shift 4

mount -t tmpfs -o mode=755 tmpfs "$state"
overlay() { # LOWER TARGET
    count=$((${count:-0} + 1))
    mkdir -p "$state/upper$count" "$state/work$count" "$2"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$state/upper$count,workdir=$state/work$count" "$2"
}
root=$state/root
overlay / "$root"
for needed; do
    [ "$(stat -c %m "$needed")" = / ] || overlay "$needed" "$root$needed" # an overlay does not see other mounts
done

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir "$root/run/board" "$root/run/proc"
mount --bind "$board" "$root/run/board"
mount --bind "$board/sys" "$root/sys"
mount -t proc proc "$root/run/proc"
mount -o bind,ro "$root/run/proc/sys" "$root/run/proc/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/proc"
for name in $(cd /proc && ls -d [!0-9]*); do
    ln -s "/run/proc/$name" "$root/proc/$name"
done
for name in $(ls "$board/proc"); do
    ln -sfn "/run/board/proc/$name" "$root/proc/$name"
done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"

(cd "$board" && find etc usr -type f && ls -d var/lib/*) | while read -r file; do
    mkdir -p "$root/${file%/*}"
    rm -rf "${root:?}/$file"
    ln -s "/run/board/$file" "$root/$file"
done
: >"$root/etc/fstab"
grep -q '^jtop:' "$root/etc/group" || echo 'jtop:x:990:' >>"$root/etc/group"

exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH="$path" PYTHONDONTWRITEBYTECODE=1 JTOP_SERVICE=True \
    "$python" -m jtop --force
