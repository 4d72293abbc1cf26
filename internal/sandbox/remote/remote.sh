# The far side of package remote: one operation on a host that is reached by
# running commands on it. Any POSIX sh runs it, with coreutils and grep (dash,
# bash and busybox are tested):
#
#   sh -c THIS sh OP NONCE BASE WORK HOME TMP ARGS...
#
# Its output streams are the operation's. The answer is the last thing on
# stderr: NONCE, a word, and what belongs to it. No answer means that this
# script, or the way to it, broke.
#
# What a command is to be run with comes in on stdin and never stands on a
# command line: it may be secret. In front of other input it is read by the
# read builtin, which by POSIX takes no byte too many.

setsid= reader= op=$1 nonce=$2 base=$3 work=$4 home=$5 tmp=$6
shift 6
nl='
' ifs=$IFS
case $base in /*) ;; *) base=$PWD/$base ;; esac
: "${work:=$base/work}" "${home:=$base/home}" "${tmp:=$base/tmp}"

# The streams that belong to the operation; what tools say on 2 is detail.
exec 4>&2 5>&1

answer() {
	[ -z "$reader" ] || wait "$reader"
	printf '%s %s\n' "$nonce" "$*" >&4
	exit 0
}

# failed WHAT DIR: with the room left on the disk, since that is what a program
# cannot say but in words. Free blocks, their size, free inodes, all inodes; and
# where these are no reason, since they know nothing of quotas, whether a little
# can be written.
failed() { answer failed "$1" $(stat -f -c '%a %S %d %c' "$2" 2>/dev/null) "$(probed "$2")"; }

# probed DIR: fits, full, or closed to us.
probed() {
	[ -w "$1" ] && ! read_only "$1" || { echo closed; return; }
	probe=$1/.probe-$nonce said=full
	head -c 1048576 /dev/zero >"$probe" && said=fits
	rm -f "$probe"
	echo $said
} 2>/dev/null

# read_only DIR: whether it is on a file system that is mounted so.
read_only() {
	at=$(cd -P "$1" && pwd)/ found=
	while read -r device point type options rest; do
		case $at in "${point%/}"/*)
			[ ${#point} -lt ${#found} ] || found=$point only=$options
			;;
		esac
	done </proc/mounts
	case ,$only, in *,ro,*) return 0 ;; esac
	return 1
}

# pause SECONDS; a whole one where sleep knows no fractions.
pause() { sleep "$1" 2>/dev/null || sleep 1; }

# now sets $now to hundredths of a second since some time.
now() {
	read -r now frac </proc/uptime
	frac=${now#*.}
	now=$((${now%%.*} * 100 + 1$frac - 100))
}

# ready waits for a host whose preparation is under way.
ready() {
	tries=0
	until [ -d "$base/run" ]; do
		[ $tries -lt 1000 ] || answer unprepared
		tries=$((tries + 1))
		pause 0.02
	done
}

# header reads shell text up to a line with the nonce into $header.
header() {
	header=
	while IFS= read -r line; do
		[ "$line" != "$nonce" ] || return 0
		header=$header$line$nl
	done
	answer cut
}

# enter DIR [make]: goes to a directory below the working directory, one name
# at a time, so that no link leads out of it. 1: it is missing; 2: it is none.
enter() {
	cd -P "$work" || failed enter "$base"
	top=$PWD rest=$1/
	while [ -n "$rest" ]; do
		part=${rest%%/*} rest=${rest#*/}
		case $part in '' | .) continue ;; esac
		if [ "$2" = make ] && ! [ -e "./$part" ] && ! [ -h "./$part" ]; then
			mkdir "./$part" || [ -d "./$part" ] || failed mkdir .
		fi
		[ -e "./$part" ] || return 1
		cd -P "./$part" || return 2
		case $PWD/ in "$top"/*) ;; *) return 2 ;; esac
	done
}

# alive PID START: whether it is the same process still; a zombie is dead.
alive() {
	{ read -r stat </proc/"$1"/stat; } 2>/dev/null || return 1
	set -- "$2" ${stat##*) }
	[ "$1" = "${21}" ] && [ "$2" != Z ] && [ "$2" != X ]
}

# supervised: whether the supervisor of $dir lives.
supervised() {
	{ read -r pid start boot <"$dir/pid"; } 2>/dev/null || return 1
	read -r same </proc/sys/kernel/random/boot_id
	[ "$boot" = "$same" ] && alive "$pid" "$start"
}

# begun waits for pid: whoever made $dir may not have got that far.
begun() {
	tries=0
	until [ -e "$dir/pid" ]; do
		[ -d "$dir" ] && [ $tries -lt 500 ] || return 1
		tries=$((tries + 1))
		pause 0.02
	done
}

# The tree of a launch: the processes that carry its mark in their environment,
# whatever is in a session of theirs, and what descends from either. What one
# look has found is known to the next, when the parent that led to it is dead.
known=' ' sessions=' '
read -r stat </proc/$$/stat
set_own() { own=$4; }
set_own ${stat##*) }

# marks prints a token for each process with a mark: m<pid> for one of the
# patterns, s<pid> for a supervisor. head's titles name the files, one grep
# spares the shell the rest.
marks() {
	head -c 262144 /proc/[0-9]*/environ 2>/dev/null | tr '\n\0' '\001\n' |
		LC_ALL=C grep -F -e '==> /proc/' -e EXECUTOR_ | while IFS= read -r line; do
		case $line in *'==> /proc/'*)
			pid=${line##*==> /proc/}
			pid=${pid%%/*}
			;;
		esac
		case $line in *"$mark"*) printf ' m%s ' "$pid" ;; esac
		if [ -n "$helper" ]; then
			case $line in *"$helper"*) printf ' m%s ' "$pid" ;; esac
		fi
		case $line in *EXECUTOR_SUPERVISOR=*) printf ' s%s ' "$pid" ;; esac
	done
}

# look sets $tree to the pids of the tree, and $command to those that are
# neither supervisor nor its inner shell.
look() {
	rows= tree=' ' command=
	marked=$(marks)
	all=$(cat /proc/[0-9]*/stat 2>/dev/null)
	set -f # a process may be named *
	IFS=$nl
	for line in $all; do
		IFS=' '
		pid=${line%% *} line=${line##*) }
		case $line in Z* | X*) ;; *)
			set -- $line
			[ "$pid" = $$ ] || [ "$pid" = 1 ] || rows="$rows$pid $2 $4 ${20}$nl"
			;;
		esac
		IFS=$nl
	done
	more=1
	while [ -n "$more" ]; do
		more= rest=
		for row in $rows; do
			IFS=' '
			set -- $row
			if belongs "$@"; then
				more=1 tree="$tree$1 "
				case $known in *" $1:$4 "*) ;; *) known="$known$1:$4 " ;; esac
				case " 0 1 $own $sessions" in *" $3 "*) ;; *) sessions="$sessions$3 " ;; esac
				case $marked in *" s$1 "*) ;; *) command="$command $1" ;; esac
			else
				rest="$rest$row$nl"
			fi
			IFS=$nl
		done
		rows=$rest
	done
	IFS=$ifs
	set +f
}

belongs() { # pid parent session start
	case $marked in *" m$1 "*) return 0 ;; esac
	case $known in *" $1:$4 "*) return 0 ;; esac
	case $tree in *" $2 "*) return 0 ;; esac
	case $sessions in *" $3 "*) return 0 ;; esac
	return 1
}

# end kills the tree until two looks find nothing: one is not atomic, and what
# forks fast may pass behind it.
end() {
	now
	until=$((now + 1000)) clean=0
	while :; do
		look
		if [ "$tree" = ' ' ]; then
			clean=$((clean + 1))
			[ $clean -lt 2 ] || return 0
			continue
		fi
		clean=0
		kill -KILL $tree 2>/dev/null
		now
		[ $now -lt $until ] || answer outlived $tree
		pause 0.01
	done
}

# terminate GRACE: asks every process of the command to end, once. What they
# start in answer is left alone until the grace is over. A process without
# arguments is just becoming another: it is waited for.
terminate() {
	now
	until=$((now + $1)) asked= wait=0.01
	while [ $now -lt $until ]; do
		look
		[ "$tree" != ' ' ] && ! [ -e "$dir/exit" ] || return 0
		if [ -z "$asked" ] && [ -n "$command" ] && settled; then
			asked=1
			kill -TERM $command 2>/dev/null
			kill -CONT $command 2>/dev/null
		fi
		pause $wait
		[ -z "$asked" ] || wait=0.05
		now
	done
}

settled() {
	for pid in $command; do
		argument=
		{ IFS= read -r argument </proc/"$pid"/cmdline; } 2>/dev/null || [ -n "$argument" ] || ! [ -d /proc/"$pid" ] || return 1
	done
}

# kill_command ends the command first, so that its supervisor records the end:
# for that it has two seconds without one.
kill_command() {
	now
	until=$((now + 200)) limit=$((now + 1000))
	while [ $now -lt $until ] && [ $now -lt $limit ]; do
		look
		[ "$tree" != ' ' ] || return 0
		now
		if [ -n "$command" ]; then
			kill -KILL $command 2>/dev/null
			until=$((now + 200))
		fi
		pause 0.01
	done
}

# given STREAM sets $given to how much of it was given back.
given() { read -r given <"$dir/given.$1" || given=0; }

# note STREAM N: in the place of what was there, which takes no room.
note() { printf '%20d\n' "$2" 1<>"$dir/given.$1"; }

# give STREAM N: makes a hole of its beginning. busybox's fallocate cannot.
give() {
	given "$1"
	[ "$2" -gt "$given" ] || return
	note "$1" "$2" && fallocate -p -o 0 -l "$2" "$dir/$1" && return
	keeps=1
	note "$1" "$given"
}

# kept STREAM FROM: no hole is handed on as output.
kept() {
	given "$1"
	[ "$2" -ge "$given" ] || answer given "$1" "$given"
}

# over: whether the process was found above its ceiling.
over() { read -r over <"$dir/over" && [ "$over" = 1 ]; }

# exceeds: whether it is. $size is the sizes of its streams.
exceeds() {
	set -- $size
	given stdout
	[ $(($1 - given)) -le "$ceiling" ] || return 0
	given stderr
	[ $(($2 - given)) -gt "$ceiling" ]
}

# read_on hands on what there is, beside us.
read_on() {
	(cat <&6 >&5 && exec cat <&7 >&4) &
	reader=$!
}

# reading: whether the reader is at work. A zombie is not.
reading() {
	[ -n "$reader" ] && { read -r stat </proc/"$reader"/stat; } 2>/dev/null || return 1
	set -- ${stat##*) }
	[ "$2" = $$ ] && [ "$1" != Z ]
}

started() {
	at=$(stat -c %Y "$dir/pid") || answer lost
	answer "$1" "$at"
}

# oom is how many processes the memory limit has killed, in cgroup v2 or v1.
oom() {
	for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
		[ -r $file ] || continue
		while read -r name value; do
			[ "$name" != oom_kill ] || { echo "$value"; return; }
		done <$file
	done
	echo 0
}

# follow STDOUT STDERR CEILING hands on what the process of $dir prints, from the
# offsets on.
follow() {
	exec 8<&0 </dev/null
	mark=EXECUTOR_LAUNCH=$dir/ helper= ceiling=$3
	exec 6<"$dir/stdout" 7<"$dir/stderr" || answer lost
	# The descriptors keep their places from one cat to the next.
	[ "$1" = 0 ] || dd bs=1 skip="$1" count=0 <&6
	[ "$2" = 0 ] || dd bs=1 skip="$2" count=0 <&7

	# Whoever follows holds the input open, and says in it what may be given
	# back. When it ends, nobody listens.
	group=$$ keeps=
	of_group() { [ "$3" != $$ ] || group=-$$; }
	read -r stat </proc/$$/stat
	of_group ${stat##*) }
	(
		while read -r stream upto <&8; do [ -n "$keeps" ] || give "$stream" "$upto"; done
		kill -KILL $group
	) 4>&- 5>&- 6<&- 7<&- &
	watch=$!
	exec 8<&-

	# The reader is beside the loop: it stands still while nobody takes what
	# it hands on, and the ceiling holds all the same.
	echo content >&5
	seen= last= wait=0.01
	while :; do
		ended=
		[ -e "$dir/exit" ] || supervised || ended=1
		[ ! -e "$dir/exit" ] || ended=1
		if [ -n "$ended" ]; then
			reading || read_on # somebody waits for it
			end
		fi
		size=$(stat -c %s "$dir/stdout" "$dir/stderr") || ended=1
		if [ -n "$ended" ] || ! reading; then
			[ -z "$reader" ] || wait "$reader" || exit 1
			reader=
		fi
		if [ -n "$ended" ]; then
			cat <&6 >&5 && cat <&7 >&4 || exit 1
			break
		fi
		# First it is written down, so that whoever follows later knows.
		if over || { exceeds && [ ! -e "$dir/exit" ] && echo 1 1<>"$dir/over" && over; }; then
			kill_command
			end
			continue
		fi
		if [ -z "$reader" ] && [ "$size" != "$seen" ]; then
			read_on
			seen=$size
		fi
		[ "$size" = "$last" ] || wait=0.04
		last=$size
		pause $wait
		case $wait in
		0.01) wait=0.02 ;;
		0.02) wait=0.04 ;;
		0.04) wait=0.08 ;;
		0.08) wait=0.15 ;;
		*) wait=0.25 ;;
		esac
	done
	kill -KILL $watch
	word=ended
	[ -e "$dir/exit" ] || word=lost
	! over || word=over
	before=0
	read -r before <"$dir/oom"
	printf '%s %s %s %s %s\n' "$nonce" $word "$before" "$(oom)" "$(echo $size)" >&4
	cat "$dir/exit" >&4
}

case $op in
prepare)
	umask 077
	mkdir -p "$base" && mkdir -p "$work" "$home" "$tmp" "$base/exec" && mkdir -p "$base/run" || failed prepare /
	answer ok
	;;

exec)
	# Whoever cancels makes the directory first, see cancel.
	exec 2>/dev/null
	ready
	header
	mark="EXECUTOR_LAUNCH=$base/exec/$nonce/" helper=
	eval "$header"
	enter "$at" || answer invalid
	[ ! -d "$base/exec/$nonce" ] || answer stopped
	before=$(oom)
	report=$(launch 3>&4 2>&1 >&5 4>&- 5>&-)
	code=$?
	end
	printf '%s ended %s %s\n%s\nsupervised: %s\n' "$nonce" "$before" "$(oom)" "$report" $code >&4
	;;

cancel) # NONCE of an exec: what is there of it, and what may come of it later
	mark="EXECUTOR_LAUNCH=$base/exec/$1/" helper="EXECUTOR_HELPER=$1"
	mkdir "$base/exec/$1"
	end
	answer ok
	;;

start) # NAME LENGTH CEILING; goes on as follow from 0, if it started something
	ready
	dir=$base/run/$1
	if [ -d "$dir" ]; then
		begun || answer lost
		started adopted
	fi
	header
	mark=$dir/
	eval "$header"
	(enter "$at") || answer invalid
	umask 077
	new=$base/run/.new-$nonce
	trap 'rm -rf "$new"' EXIT
	trap : PIPE
	mkdir "$new" && { [ "$2" = 0 ] || head -c "$2"; } >"$new/stdin" || failed input "$base/run"
	[ "$2" = 0 ] || [ "$(stat -c %s "$new/stdin")" = "$2" ] || answer cut
	reserve=$nl
	while [ ${#reserve} -lt 128 ]; do reserve=$reserve$reserve; done
	: >"$new/stdout" && : >"$new/stderr" && oom >"$new/oom" && echo 0 >"$new/over" &&
		printf '%20d\n' 0 >"$new/given.stdout" && printf '%20d\n' 0 >"$new/given.stderr" &&
		printf %s "$reserve" >"$new/pid.new" && printf %s "$reserve" >"$new/status" || failed layout "$base/run"
	# The guard: whoever makes it starts, all others adopt.
	if ! mkdir "$dir" 2>/dev/null; then
		[ -d "$dir" ] || failed guard "$base/run"
		begun || answer lost
		started adopted
	fi
	mv "$new"/* "$dir"/ || answer lost
	umask 022
	# Not with &, which would leave the command without SIGINT: the second
	# setsid, a group leader by the first, forks and returns.
	setsid=$(command -v setsid)
	if [ -n "$setsid" ]; then
		(enter "$at" && launch) </dev/null >/dev/null 2>&1 4>&- 5>&-
	else
		(enter "$at" && launch) </dev/null >/dev/null 2>&1 4>&- 5>&- &
	fi
	tries=0
	until [ -e "$dir/pid" ]; do
		[ $tries -lt 1000 ] || answer lost
		tries=$((tries + 1))
		pause 0.005
	done
	# Without setsid, to end our group is to end the process.
	[ -n "$setsid" ] || started started
	exec 2>/dev/null
	rmdir "$new"
	trap - EXIT PIPE
	at=$(stat -c %Y "$dir/pid") || answer lost
	printf '%s following %s\n' "$nonce" "$at" >&4
	follow 0 0 "$3"
	;;

follow) # NAME STDOUT STDERR CEILING; a line of its own goes before stdout
	exec 2>/dev/null
	dir=$base/run/$1
	ready
	[ -d "$dir" ] || answer none
	begun
	kept stdout "$2"
	kept stderr "$3"
	follow "$2" "$3" "$4"
	;;

stop) # NAME GRACE in hundredths of a second
	ready
	dir=$base/run/$1 mark="EXECUTOR_LAUNCH=$base/run/$1/" helper=
	[ -d "$dir" ] || answer ok
	begun
	[ "$2" = 0 ] || terminate "$2"
	kill_command
	end
	answer ok
	;;

put) # DIR NAME MODE; the content ends with the nonce, or it is cut
	ready
	enter "$1" make || answer invalid
	[ -h "./$2" ] || ! [ -d "./$2" ] || answer invalid
	temporary=./.upload-$nonce
	# Also when nobody is there to hear the answer any more.
	trap 'rm -f "$temporary"' EXIT
	trap : PIPE
	(umask 077; cat >"$temporary") || failed write .
	size=$(($(stat -c %s "$temporary") - ${#nonce}))
	[ $size -ge 0 ] && [ "$(tail -c ${#nonce} "$temporary" | tr -d '\0')" = "$nonce" ] || answer cut
	dd if=/dev/null of="$temporary" bs=1 seek=$size count=0 2>/dev/null || failed write .
	chmod "$3" "$temporary" || failed chmod .
	# mv would move into the directory that a link leads to.
	if [ -h "./$2" ] && [ -d "./$2" ]; then rm "./$2"; fi
	mv -f "$temporary" "./$2" || failed rename .
	answer ok
	;;

get) # DIR NAME; a line of its own goes before the content
	ready
	enter "$1"
	case $? in
	1) answer missing ;;
	2) answer invalid ;;
	esac
	file=./$2
	if [ -h "$file" ]; then
		file=$(readlink -f "$file") && [ -n "$file" ] || answer missing
		case $file in "$top"/*) ;; *) answer invalid ;; esac
	fi
	[ -e "$file" ] || answer missing
	[ -f "$file" ] || answer invalid
	exec 6<"$file" || answer denied
	echo content
	cat <&6 || exit 1
	answer ok
	;;
esac
