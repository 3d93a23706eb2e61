# box.sh IMAGE DIR: a shell in an overlay of IMAGE, with its own mounts, processes and control groups, in the
# network namespace of whoever starts it. DIR/web is put at /web.tar. It lives until its standard input ends.
set -eu
image=$1 dir=$2
mkdir -p "$dir/up" "$dir/work" "$dir/root" "$dir/group"
mount --make-rprivate /
mount -t cgroup2 none "$dir/group"
own="$dir/group/mesh-engines-$$"
mkdir "$own"
trap 'echo 1 > "$own/cgroup.kill"; find "$own" -depth -type d -exec rmdir {} \; 2>/dev/null || { sleep 1; find "$own" -depth -type d -exec rmdir {} \; ; }' EXIT
mount -t overlay box -o "lowerdir=$image,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
cd "$dir/root"
tar -C "$dir" -cf web.tar web
for part in run tmp var/lib/containers var/lib/docker var/lib/containerd; do mkdir -p "$part"; mount -t tmpfs box "$part"; done
mkdir -p run/netns
mount -t sysfs box sys
mount --rbind /dev dev
sh -c 'echo 0 > "$1/cgroup.procs"; shift; exec "$@"' x "$own" unshare -p -f -C --kill-child sh -ec '
  mount -t proc box proc
  mount -t cgroup2 box sys/fs/cgroup
  mkdir sys/fs/cgroup/init
  echo 0 > sys/fs/cgroup/init/cgroup.procs
  for c in $(cat sys/fs/cgroup/cgroup.controllers); do echo "+$c" > sys/fs/cgroup/cgroup.subtree_control || true; done
  exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh'
