# Starts one host and starts it again when it reboots. Arguments: cgroup, the same below the hierarchy's
# root, console log, root, machine name, hostname, network namespace. Run through setsid --fork, so that
# nobody has to wait for it. DESIGN.md has the reasons.
set -e
cd /
mkdir -p "$1/boot"
echo $$ >"$1/boot/cgroup.procs"
exec </dev/null >>"$3" 2>&1
shift
# From here on: cgroup below the root, console log, root, machine name, hostname, network namespace, more options.
exec unshare --mount --propagation slave sh -ec '
	if mountpoint -q /sys/fs/cgroup; then umount -R /sys/fs/cgroup; fi
	mount -t cgroup2 none /sys/fs/cgroup
	export SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
	cgroup=$1 root=$3 machine=$4 name=$5 net=$6
	shift 6
	status=133
	while [ "$status" = 133 ]; do
		status=0
		sh -ec "echo \$\$ >\"\$1/cgroup.procs\"; shift; exec \"\$@\"" host "/sys/fs/cgroup/$cgroup" \
			systemd-nspawn --quiet --boot --directory="$root" --machine="$machine" --hostname="$name" \
			--network-namespace-path="$net" --register=no --keep-unit --link-journal=no \
			--resolv-conf=off --timezone=off --console=pipe --capability=all \
			--system-call-filter="@keyring bpf perf_event_open" \
			"$@" systemd.firstboot=off || status=$?
	done
	exit "$status"
' boot "$@"
