#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Can the simulation fail? Breaks one rule of the flash tier at a time, in a copy of one source file, and runs histories until one
# fails: each rule must be missed within SEEDS of them. 'make sim-mutants' gives what it needs in the environment:
# top_srcdir, CC, COMPILE_FLAGS, LINK_OBJECTS, LINK_LIBS. Arguments: names of mutants, all by default.
set -u
: "${top_srcdir:?}" "${CC:?}" "${COMPILE_FLAGS:?}" "${LINK_OBJECTS:?}" "${LINK_LIBS:?}"
seeds=${SEEDS:-1500}
processes=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
caught=0
missed=0

# mutant NAME FILE SED-SCRIPT: what it is, is its name.
mutant()
{
	local name=$1 file=$2 script=$3 source=$work/$1.c line
	[ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
	sed -E "$script" "$top_srcdir/$file" > "$source"
	if cmp -s "$source" "$top_srcdir/$file"; then
		echo "$name: the script changes nothing in $file"
		missed=$((missed + 1))
		return 0
	fi
	# Words are meant to be split here.
	# shellcheck disable=SC2086
	if ! $CC $COMPILE_FLAGS -I"$top_srcdir/$(dirname "$file")" -c "$source" -o "$work/$name.o" 2> "$work/log" ||
		! $CC $COMPILE_FLAGS $LINK_OBJECTS "$work/$name.o" $LINK_LIBS -o "$work/$name" 2>> "$work/log"; then
		echo "$name: doesn't compile"
		cat "$work/log"
		missed=$((missed + 1))
		return 0
	fi
	line=$("$work/$name" 1 "$seeds" "$processes" 2>/dev/null | grep -a -m 1 -o 'FAILED: seed.*')
	if [ -n "$line" ]; then
		echo "$name: caught, $line"
		caught=$((caught + 1))
	else
		echo "$name: NOT caught in $seeds histories"
		missed=$((missed + 1))
	fi
}

wanted=("$@")

# The journal and what waits for it.
mutant no-wait src/flash/journal.c 's/if \(flash->options.journal == FLASH_JOURNAL_ASYNC\)/if (1)/'
mutant no-record src/store/change.c 's/__builtin_expect\(change->position != 0, 0\)/0/'
mutant no-place-record src/store/change.c 's/^\t\t\tposition \? store_flash_kill/\t\t\tposition == 1 ? store_flash_kill/'
mutant no-place-in-recovery src/flash/recover.c 's/if \(replaced.segment == 0\)/if (1)/'
mutant block-in-place src/flash/journal.c 's/journal->spare = older;/journal->spare = place;/'
mutant journal-not-durable src/flash/journal.c 's/\.durable = true/.durable = false/'
mutant position-too-low src/flash/journal.c 's/intent->covers = kind == FLASH_RECORD_PLACE \? position \| COVERS_PLACE : tail;/intent->covers = kind == FLASH_RECORD_PLACE ? position | COVERS_PLACE : UINT64_MAX \/ 4;/'
# Keys and tags.
mutant tags-are-keys src/store/flash.c 's/if \(item_has_key\(loan->item, key, key_size\)\)/if (1)/'
# What a promoted item owes to its copy.
mutant no-origin src/store/flash.c 's/return flash_believed\(store->flash, position\) \? position : 0;/return 0;/'
# Flushes.
mutant flush-position-ignored src/store/flash.c 's/if \(position < flash_flush_position\(thread->store->flash\)\)/if (0)/'
mutant flush-not-recorded src/flash/super.c 's/now->flush_position = \*position;/;/'
mutant flush-not-awaited src/flash/super.c 's/^flash_flushed\(const struct flash \*flash, const struct flash_intent \*intent\)$/flash_flushed(const struct flash *flash, const struct flash_intent *intent) { (void)flash; (void)intent; return FLASH_DURABLE; }\nenum flash_durable unused_flushed(const struct flash *flash, const struct flash_intent *intent);\nenum flash_durable\nunused_flushed(const struct flash *flash, const struct flash_intent *intent)/'
mutant due-flush-forgotten src/flash/recover.c 's/if \(found->flush_at_ns != 0 \&\& found->flush_at_ns <= [a-z_>-]+\)/if (0)/'
# Regions.
mutant no-free-header src/flash/reclaim.c 's/log_submit\(flash, \&reclaim->write, IO_WRITE, reclaim->region, 0, reclaim->block,/log_submit(flash, \&reclaim->write, IO_READ, reclaim->region, 0, reclaim->block,/'
mutant free-header-not-durable src/flash/reclaim.c 's/FLASH_BLOCK, true, io_done\)/FLASH_BLOCK, false, io_done)/'
mutant void-entries-stay src/store/flash.c ':a;N;$!ba;s/if \(position == 0\)\n\t\treturn CANDIDATE_FAILED/if (position == 0)\n\t\treturn CANDIDATE_OTHER/'
mutant reads-unchecked src/flash/read.c 's/if \(layout_item_valid\($/if (layout_item_bytes(item, room) != 0 || layout_item_valid(/'
# Starts.
mutant marker-ignored src/flash/super.c 's/super->marked = marker_is_there\(flash\);/super->marked = false;/'
mutant clean-mark-stays src/flash/recover.c 's/super->(state = FLASH_IN_USE|snapshot_sequence = 0);/;/'
mutant sequence-again src/flash/recover.c 's/recover->first = recover->sequence = most \+ SEQUENCES_APART;/recover->first = recover->sequence = found->sequence_next + 1;/'
mutant cas-again src/store/flash_open.c 's/atomic_store\(\&store->cas_next, flash_cas_first\(store->flash\)\);/atomic_store(\&store->cas_next, 1);/'
# Records of what left while nobody waited.
mutant flushed-forgotten src/store/upkeep.c 's/reason == MEMORY_FLUSHED\)$/false)/'

echo "$caught caught, $missed missed"
[ "$missed" -eq 0 ]
