#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs the scripts given as arguments (paths below $top_srcdir), each of which prints 'N passed, N failed, N skipped' as
# its last such line, and prints the sum. A script that fails without saying so counts as one failure, and so does one
# that says nothing; exit code 77 is one skip. Logs go to $top_builddir/system-logs.
set -u

if [ "$(id -u)" -ne 0 ]; then
	echo 'check-system: must be run as root' >&2
	exit 1
fi
: "${top_srcdir:?is set by make check-system}" "${top_builddir:?is set by make check-system}"
logs=$top_builddir/system-logs
mkdir -p "$logs" || exit 1
passed=0
failed=0
skipped=0

for script in "$@"; do
	log=${script#tests/}
	log=${log%.*}
	log=$logs/${log//\//-}.log
	start=$SECONDS
	case $script in
	*.py) "${PYTHON:-python3}" "$top_srcdir/$script" > "$log" 2>&1 < /dev/null ;;
	*.sh) bash "$top_srcdir/$script" > "$log" 2>&1 < /dev/null ;;
	*) "$top_srcdir/$script" > "$log" 2>&1 < /dev/null ;;
	esac
	code=$?
	line=$(grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$log" | tail -n 1)
	if [ -n "$line" ]; then
		read -r p _ f _ s _ <<< "${line//,/}"
	elif [ "$code" -eq 77 ]; then
		p=0 f=0 s=1
	else
		p=0 f=1 s=0
	fi
	if [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && [ "$f" -eq 0 ]; then
		f=1
	fi
	passed=$((passed + p))
	failed=$((failed + f))
	skipped=$((skipped + s))
	printf '%-40s %d passed, %d failed, %d skipped (%d s)\n' "$script" "$p" "$f" "$s" $((SECONDS - start))
	if [ "$f" -ne 0 ]; then
		echo "---- the end of $log"
		tail -n 40 "$log"
		echo "----"
	fi
done
echo "check-system: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
