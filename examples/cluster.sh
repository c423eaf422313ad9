#!/usr/bin/env bash
# cluster.sh makes a platform of several servers on one machine, to try it out.
#
#   examples/cluster.sh up N                N servers, each in a network namespace of its own
#   examples/cluster.sh start I [FLAG...]   server I alone, with more flags of `hangar up`
#   examples/cluster.sh down                stops them, and removes everything that was created
#
# The last line that up prints is a JSON array with {"name","api","http","token","pid"} for each
# server: api and http are HOST:PORT for plain HTTP, pid is the daemon's.
#
# up and down may be repeated: up starts servers that do not run, and adds servers if N has grown. Three of them hold the
# cluster state, or five if the platform begins with five or more.
#
#   CLUSTER_DIR     data directories of the servers         /tmp/hgc
#   CLUSTER_NET     first three numbers of their addresses  10.213.77
#   CLUSTER_NAME    prefix of network devices               hgc (at most 6 characters)
#   CLUSTER_DOMAIN  domain of Apps                          cluster.test
#   CLUSTER_FLAGS   more flags of `hangar up`               (such as --driver fake)
#   HANGAR          the program                             bin/hangar beside this script's directory
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hangar=${HANGAR:-$here/../bin/hangar}
dir=${CLUSTER_DIR:-/tmp/hgc}
net=${CLUSTER_NET:-10.213.77}
name=${CLUSTER_NAME:-hgc}
domain=${CLUSTER_DOMAIN:-cluster.test}
read -r -a flags <<<"${CLUSTER_FLAGS:-}"

api_port=4280
cluster_port=4281
http_port=80

say() { printf '%s\n' "$*" >&2; }

die() {
	say "cluster.sh: $*"
	exit 1
}

usage() {
	say "usage: cluster.sh up N | start I [FLAG...] | down"
	exit 2
}

address() { printf '%s.%d' "$net" $((10 + $1)); }

# inside runs a command in the network of a server, and in the mount namespace of this machine.
inside() {
	local n=$1
	shift
	nsenter --net="/run/netns/$name$n" -- "$@"
}

# pid_of prints the process of a server's daemon, if it runs.
pid_of() {
	local lock="$dir/$1/lock" pid
	[[ -s $lock ]] || return 1
	pid=$(<"$lock")
	[[ $pid =~ ^[0-9]+$ && -r /proc/$pid/cmdline ]] || return 1
	tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "$dir/$1" || return 1
	printf '%s' "$pid"
}

make_network() {
	if ! ip link show "${name}br" >/dev/null 2>&1; then
		ip link add "${name}br" type bridge
		ip address add "$net.1/24" dev "${name}br"
	fi
	ip link set "${name}br" up
}

make_namespace() {
	local n=$1 ns=$name$1
	[[ -e /run/netns/$ns ]] || ip netns add "$ns"
	if ! ip link show "${name}v$n" >/dev/null 2>&1; then
		ip link add "${name}v$n" type veth peer name eth0 netns "$ns"
	fi
	ip link set "${name}v$n" master "${name}br" up
	inside "$n" ip link set lo up
	if ! inside "$n" ip -4 address show dev eth0 | grep -qF "$(address "$n")/24"; then
		inside "$n" ip address add "$(address "$n")/24" dev eth0
	fi
	inside "$n" ip link set eth0 up
	inside "$n" ip route replace default via "$net.1"
}

# start starts the daemon of a server, with more flags.
start() {
	local n=$1
	shift
	# The daemon must not inherit open files of this shell.
	inside "$n" "$hangar" up --dir "$dir/$n" --detach --host-name "$name$n" --domain "$domain" --region loc \
		--api "$(address "$n"):$api_port" --api-insecure --http "$(address "$n"):$http_port" --https "$(address "$n"):443" \
		--cluster ":$cluster_port" --cluster-address "$(address "$n"):$cluster_port" --acme off \
		"${flags[@]}" "$@" </dev/null >&2
}

# prepare checks the settings for a number of servers, and creates what the servers share.
prepare() {
	[[ $1 =~ ^[1-9][0-9]*$ && $1 -le 200 ]] || usage
	[[ $EUID -eq 0 ]] || die "network namespaces need root"
	[[ -x $hangar ]] || die "$hangar is missing: run make build"
	[[ ${#name} -le 6 ]] || die "CLUSTER_NAME is longer than 6 characters"
	mkdir -p "$dir"
	make_network
}

up() {
	local count=$1 n token
	prepare "$count"
	for ((n = 1; n <= count; n++)); do
		make_namespace "$n"
	done
	# Existing servers start concurrently, because each needs a majority of the others.
	local waiting=()
	for ((n = 1; n <= count; n++)); do
		if [[ -e $dir/$n/cluster/cluster.json ]] && ! pid_of "$n" >/dev/null; then
			start "$n" &
			waiting+=("$!")
		fi
	done
	local pid
	for pid in "${waiting[@]}"; do
		wait "$pid" || die "a server did not start: see daemon.log in its directory below $dir"
	done
	for ((n = 1; n <= count; n++)); do
		pid_of "$n" >/dev/null && continue
		if [[ $n -eq 1 ]]; then
			# Of five servers, all hold the state, so that two may be lost.
			if ((count < 5)); then start 1; else start 1 --cluster-members 5; fi
			continue
		fi
		token=$(HANGAR_TOKEN=$(<"$dir/1/admin.token") "$hangar" --url "http://$(address 1):$api_port" --insecure host token create 2>/dev/null)
		HANGAR_JOIN_TOKEN=$token start "$n" --join "https://$(address 1):$cluster_port"
	done
	print "$count"
}

# start_one starts the daemon of one server, in its network.
start_one() {
	local n=$1
	shift
	prepare "$n"
	make_namespace "$n"
	pid_of "$n" >/dev/null || start "$n" "$@"
}

print() {
	local n line=''
	for ((n = 1; n <= $1; n++)); do
		line+=$(printf '%s{"name":"%s","api":"%s:%d","http":"%s:%d","token":"%s","pid":%d}' "${line:+,}" "$name$n" \
			"$(address "$n")" "$api_port" "$(address "$n")" "$http_port" "$(<"$dir/$n/admin.token")" "$(pid_of "$n")")
	done
	printf '[%s]\n' "$line"
}

down() {
	local failed=0 path n ns
	[[ $EUID -eq 0 ]] || die "network namespaces need root"
	for path in "$dir"/[0-9]*; do
		[[ -e $path/daemon.json ]] || continue
		n=${path##*/}
		if [[ -e /run/netns/$name$n ]]; then
			inside "$n" "$hangar" down --yes --dir "$path" </dev/null >&2 || failed=1
		else
			"$hangar" down --yes --dir "$path" </dev/null >&2 || failed=1
		fi
	done
	[[ $failed -eq 0 ]] || die "a server is not removed; run it again"
	for path in /run/netns/"$name"[0-9]*; do
		[[ -e $path ]] || continue
		ns=${path##*/}
		ip link delete "${name}v${ns#"$name"}" 2>/dev/null || true
		ip netns delete "$ns"
	done
	ip link delete "${name}br" 2>/dev/null || true
	for path in "$dir"/[0-9]*; do
		[[ -d $path ]] && rm -rf -- "$path"
	done
	if [[ -d $dir ]]; then
		rmdir -- "$dir"
	fi
}

case "${1:-}" in
up)
	[[ $# -eq 2 ]] || usage
	up "$2"
	;;
start)
	[[ $# -ge 2 ]] || usage
	shift
	start_one "$@"
	;;
down)
	[[ $# -eq 1 ]] || usage
	down
	;;
*) usage ;;
esac
