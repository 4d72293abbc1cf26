# One launch of a detached process. Two roles of one script, so that it can be
# handed to any POSIX sh with -c (dash, bash and busybox ash are tested):
#
#   supervise RUNDIR [wrapper...] sh -c THIS sh command ARGV...
#       outside; outlives the command, writes pid first and exit last
#   command ARGV...
#       inside the wrapper, if there is one; runs the command, with descriptor
#       3 for its stderr, and reports on its own stderr
#
# The environment is the command's own, plus two marks: EXECUTOR_LAUNCH in
# every process of the launch, EXECUTOR_SUPERVISOR in this script and the
# wrapper only.

# bash in its POSIX mode says nothing about a child that died of a signal.
[ -z "$BASH_VERSION" ] || set +o posix

role=$1
shift

case $role in
supervise)
	run=$1
	shift
	path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

	# Caught, not ignored: the command starts with the default actions.
	trap : TERM INT HUP

	# Whoever cannot write pid runs nothing: the host is being deleted.
	read -r boot </proc/sys/kernel/random/boot_id
	read -r stat </proc/$$/stat
	nineteenth() { shift 19; start=$1; }
	nineteenth ${stat##*) }
	echo "$$ $start $boot" 1<>"$run/pid.new" &&
		PATH=$path mv "$run/pid.new" "$run/pid" || exit 1

	# A wrapper may fail before the command began: bubblewrap does when one of
	# the machine's mounts goes away under it. Then nothing was run yet.
	begun() {
		begun=1 ended=0
		while read -r word status rest; do
			case $word in
			begun) begun=0 ;;
			ended:) ended=$status ;;
			esac
		done <"$run/status"
		return $begun
	}
	for try in 1 2 3; do
		"$@" <"$run/stdin" >>"$run/stdout" 3>>"$run/stderr" 2>>"$run/status"
		code=$?
		if begun || [ $code -gt 128 ]; then break; fi
	done
	echo "supervised: $code" >>"$run/status"
	# What failed by itself may have done so for want of room.
	if [ $ended -gt 0 ] && [ $ended -le 128 ]; then
		PATH=$path stat -f -c 'room: %a %S %d %c' "$run" >>"$run/status" 2>/dev/null
	fi
	PATH=$path mv "$run/status" "$run/exit"
	;;

command)
	echo begun >&2

	# What shells set and nobody asked for.
	unset EXECUTOR_SUPERVISOR PWD OLDPWD SHLVL

	# A session of its own, so that a "kill 0" of the command stays with it.
	command -v setsid >/dev/null 2>&1 && set -- setsid -- "$@"

	# A shell folds "died of signal n" and "exited with 128+n" into one number,
	# but has something to say on its stderr about the first. exec, so that a
	# command named like a builtin is not one.
	(exec "$@") 2>&3 3>&-
	echo "ended: $? $$" >&2
	;;
esac
