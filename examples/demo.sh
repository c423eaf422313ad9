#!/bin/sh
# Shows the platform in a minute. A program becomes an image, and the image a Machine that the
# public edge serves by name. The Machine sleeps while there are no requests, and a request
# wakes it with its memory. Data that it writes to a volume survives a kill, and is in a
# snapshot. Needs root. Removes everything it creates, unless KEEP=1.
set -eu
cd "$(dirname "$0")/.."

[ "$(id -u)" -eq 0 ] || { echo 'the demo runs real Machines: run it as root (sudo make demo)' >&2; exit 1; }
GO=${GO:-go}
hangar=$PWD/bin/hangar
work=$(mktemp -d /tmp/hangar-demo.XXXXXX)
export HANGAR_DIR="$work/data"
unset HANGAR_URL HANGAR_TOKEN
export HANGAR_CONFIG=/dev/null

cleanup() {
	code=$?
	trap - EXIT INT TERM
	if [ "${KEEP:-}" = 1 ] && [ "$code" -eq 0 ]; then
		return
	fi
	if [ "$code" -ne 0 ] && [ -f "$HANGAR_DIR/daemon.log" ]; then
		printf '\nThe demo failed. The last lines of the daemon:\n' >&2
		tail -n 20 "$HANGAR_DIR/daemon.log" >&2
	fi
	if [ -f "$HANGAR_DIR/daemon.json" ]; then
		step 'remove everything: hangar down'
		"$hangar" down --yes || code=1
	fi
	[ -e "$HANGAR_DIR" ] || rm -rf "$work"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

step() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf '$ %s\n' "$*" && "$@"; }
ask() { # [OPTION…] URL; retries until the program of a started Machine listens
	printf '$ curl %s\n' "$*"
	tries=0
	until curl --silent --fail --globoff --max-time 15 "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 200 ] || { echo "no answer from $*" >&2; return 1; }
		sleep 0.05
	done
}
address() { # of a Machine
	"$hangar" machine status hello "$1" --json | sed -n 's/^  "private_ip": "\(.*\)",$/\1/p'
}

step 'the platform: one binary, one directory'
run "$hangar" up --detach --api 127.0.0.1:0 --http 127.0.0.1:0 --https 127.0.0.1:0

step 'an image, from a program, without Docker'
run env CGO_ENABLED=0 "$GO" build -o "$work/hello" ./examples/hello
printf '$ hangar image push hello hello\n'
pushed=$("$hangar" image push "$work/hello" hello)
echo "$pushed"
image=${pushed##*[[:space:]]}

step 'a Machine, and the edge that serves it by name'
run "$hangar" apps create hello
run "$hangar" machine run hello "$image" --name counter --port 80:8080 --autostop suspend --autostop-after 1s
name=hello.hangar.localhost
edge=$(cat "$HANGAR_DIR/http.addr") # any free port, so that the demo disturbs no other program
visit() { ask --connect-to "$name:80:$edge" "http://$name/"; }
visit
visit
visit

step 'without requests it is suspended: its memory is saved to disk'
run "$hangar" machine wait hello counter --state suspended

step 'a request resumes it, and it continues to count'
answer=$(visit)
echo "$answer"
case $answer in
*': request 4 since '*) ;;
*) echo 'the counter was lost' >&2; exit 1 ;;
esac

step 'after a stop, a request starts it, and it counts from the beginning'
run "$hangar" machine stop hello counter
answer=$(visit)
echo "$answer"
case $answer in
*': request 1 since '*) ;;
*) echo 'the machine was not started again' >&2; exit 1 ;;
esac

step 'its events'
run "$hangar" machine events hello counter

step 'a volume: storage that a Machine keeps'
run "$hangar" volumes create hello data --size 1 --yes
run "$hangar" machine run hello "$image" --name book --env DATA=/data --volume data:/data
book="http://[$(address book)]:8080/notes"
ask --data 'written before the crash' "$book"

step 'killed, and started again'
run "$hangar" machine restart hello book --force
ask "$book" | tee "$work/notes"
grep -q '^written before the crash$' "$work/notes" || { echo 'the note was lost' >&2; exit 1; }

step 'a snapshot, while the Machine runs; and then a mistake'
run "$hangar" volumes snapshots create hello data
snapshot=$("$hangar" volumes snapshots list hello data --quiet | head -n 1)
ask --data 'a mistake' "$book"

step 'the snapshot becomes a volume, for another Machine'
run "$hangar" volumes snapshots restore hello "$snapshot" --name data_before
run "$hangar" machine run hello "$image" --name before --env DATA=/data --volume data_before:/data
ask "http://[$(address before)]:8080/notes" | tee "$work/notes"
if grep -q 'a mistake' "$work/notes" || ! grep -q '^written before the crash$' "$work/notes"; then
	echo 'the snapshot differs from the volume' >&2
	exit 1
fi
run "$hangar" volumes list hello

if [ "${KEEP:-}" = 1 ]; then
	step 'the platform is still running'
	cat <<END
export HANGAR_DIR=$HANGAR_DIR
bin/hangar machine list
bin/hangar logs -f hello
curl --connect-to $name:80:$edge http://$name/
bin/hangar machine run hello nginx:alpine --port 80:80
bin/hangar down            # remove it
END
else
	step 'what to try next'
	cat <<'END'
KEEP=1 make demo           # the same, but keep the platform
bin/hangar doctor          # is this server ready for more?
bin/hangar up              # the platform, permanently
bin/hangar machine run --help
END
fi
