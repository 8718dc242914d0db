/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * snapshot: the index, written at a clean stop into regions of the log and read back once.
 *
 *	region 0  +--------+------+---------------+	region 1  +--------+--------------
 *		  | header | head | part 0 ...    |		  | header | ... part 0, part 1 ...
 *		  +--------+------+---------------+		  +--------+--------------
 *
 * The head says how long the parts are and which regions hold them. Parts go straight from the
 * index's memory to the device, and back. The checksum over head and parts stands in the superblock,
 * whose clean mark is written last and taken away before the first request.
 */
#include "flash/internal.h"

#include "base/crc32c.h"
#include "base/pages.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (1u << 20)
#define PIECES 32 /* under way at once */
#define WAIT_MS 20
#define REGIONS_MAX ((FLASH_BLOCK - 128 - FLASH_GEOMETRY_MAX) / 4)

struct snapshot_head {
	uint32_t parts, regions, geometry_bytes, pad;
	uint64_t part_bytes[FLASH_PARTS_MAX];
	uint8_t geometry[FLASH_GEOMETRY_MAX];
	uint32_t region[REGIONS_MAX];
};

_Static_assert(sizeof(struct snapshot_head) <= FLASH_BLOCK, "a block");

/* Head and parts, one after the other, as they go through the regions. */
struct stream {
	struct flash *flash;
	const struct snapshot_head *head;
	enum io_op op;
	struct flash_part pieces[1 + FLASH_PARTS_MAX]; /* the head, then the parts */
	uint32_t count;
	uint32_t at;	 /* the piece that is next, */
	uint64_t offset; /* and how far it is through */
	uint64_t done, total;
	uint32_t crc;
	bool failed;
	uint32_t under_way;
	struct write writes[PIECES];
};

static uint64_t
payload(const struct flash *flash)
{
	return flash->region_bytes - FLASH_BLOCK;
}

static void
transferred(struct flash *flash, struct write *write, int result)
{
	struct stream *stream = write->context;

	(void)flash;
	stream->under_way--;
	stream->failed |= result != 0;
}

/* The next piece that crosses neither a part nor a region. */
static void
submit(struct stream *stream, struct write *write)
{
	struct flash *flash = stream->flash;
	const struct flash_part *piece = &stream->pieces[stream->at];
	const struct region *region =
		&flash->regions[stream->head->region[stream->done / payload(flash)]];
	uint64_t into = stream->done % payload(flash), bytes = piece->bytes - stream->offset;

	bytes = bytes < payload(flash) - into ? bytes : payload(flash) - into;
	bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
	write->request = (struct io_request){
		.op = (uint8_t)stream->op,
		.file = region->file,
		.buffer = -1,
		.size = (uint32_t)bytes,
		.offset = region->base + FLASH_BLOCK + into,
		.data = (uint8_t *)piece->data + stream->offset,
	};
	write->done = transferred;
	write->context = stream;
	stream->under_way++;
	writer_submit(flash, write);
	stream->done += bytes;
	stream->offset += bytes;
	if (stream->offset == piece->bytes) {
		stream->at++;
		stream->offset = 0;
	}
}

/* Some pieces at once, and their checksum in order. false: an error, or the device is silent. */
static bool
transfer_some(struct stream *stream)
{
	uint32_t count = 0;

	while (count < PIECES && stream->at < stream->count)
		submit(stream, &stream->writes[count++]);
	for (uint32_t i = 0; i < count; i++)
		if (!writer_finish(stream->flash, &stream->writes[i]))
			return false;
	for (uint32_t i = 0; i < count; i++)
		stream->crc = crc32c(stream->crc, stream->writes[i].request.data,
			stream->writes[i].request.size);
	return !stream->failed;
}

/* block: the head's bytes on their way; head: what says where they go. */
static struct stream *
stream_create(struct flash *flash, enum io_op op, const struct snapshot_head *head, void *block,
	const struct flash_part *parts, uint64_t sequence)
{
	struct stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	stream->flash = flash;
	stream->op = op;
	stream->head = head;
	stream->pieces[stream->count++] = (struct flash_part){block, FLASH_BLOCK};
	stream->total = FLASH_BLOCK;
	for (uint32_t i = 0; i < head->parts; i++)
		if (parts[i].bytes > 0) {
			stream->pieces[stream->count++] = parts[i];
			stream->total += parts[i].bytes;
		}
	stream->crc = layout_seed(flash->id, sequence);
	return stream;
}

/* --- saving ------------------------------------------------------------------------------- */

/* What was put into the journal is durable: this start's records matter to the next but one. */
static bool
finish_journal(struct flash *flash, uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	uint64_t ticket = 0;

	if (flash->options.journal == FLASH_JOURNAL_OFF)
		return true;
	for (uint64_t now = now_ns(); now < deadline_ns; now = now_ns()) {
		/* One that kills nothing: when it is there, all before it are. */
		if (ticket == 0)
			ticket = journal_put(flash, FLASH_RECORD_PLACE, 0);
		if (ticket == UINT64_MAX)
			return false;
		if (ticket != 0 && journal_settled(flash, ticket) != FLASH_NOT_YET)
			return journal_settled(flash, ticket) == FLASH_DURABLE;
		if (!flash_work(flash, now))
			flash_wait(flash, WAIT_MS);
	}
	return false;
}

static bool
flush_files(struct flash *flash)
{
	for (uint32_t i = 0; i < flash->options.file_count; i++)
		if (writer_run(flash, IO_FLUSH, (uint16_t)i, 0, NULL, 0, false) != 0)
			return false;
	return true;
}

static void
set_clean(struct flash_super *super, void *context)
{
	const struct flash_super *clean = context;

	super->state = FLASH_CLEAN;
	super->cas_next = clean->cas_next;
	super->sequence_next = clean->sequence_next;
	/* What was superseded without a record is dead in the saved index alone. */
	if (super->journal_mode == FLASH_JOURNAL_OFF)
		super->unjournaled_below = flash_position_make(clean->sequence_next, 0);
	super->snapshot_sequence = clean->snapshot_sequence;
	super->snapshot_bytes = clean->snapshot_bytes;
	super->snapshot_regions = clean->snapshot_regions;
	super->snapshot_region = clean->snapshot_region;
	super->snapshot_crc = clean->snapshot_crc;
	super->objects = clean->objects;
}

/* Head filled, all but the regions' numbers. false: they would be too many. */
static bool
make_head(struct flash *flash, struct snapshot_head *head, const void *geometry,
	uint32_t geometry_bytes, const struct flash_part *parts, uint32_t part_count)
{
	uint64_t total = FLASH_BLOCK;

	if (geometry_bytes > FLASH_GEOMETRY_MAX || part_count > FLASH_PARTS_MAX)
		return false;
	head->parts = part_count;
	head->geometry_bytes = geometry_bytes;
	memcpy(head->geometry, geometry, geometry_bytes);
	for (uint32_t i = 0; i < part_count; i++) {
		head->part_bytes[i] = parts[i].bytes;
		total += parts[i].bytes;
	}
	total = (total + payload(flash) - 1) / payload(flash);
	head->regions = (uint32_t)total;
	/* Not more than a quarter of what there is: then the log is the better memory. */
	return total <= REGIONS_MAX && total <= flash->region_count / 4;
}

static bool
write_snapshot(struct flash *flash, struct snapshot_head *head, const struct flash_part *parts,
	struct flash_super *clean, uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	struct stream *stream;
	bool written = true;

	/* All before the index is read: to make room items may be dropped. */
	for (uint32_t i = 0; i < head->regions; i++) {
		head->region[i] = log_snapshot_region(flash);
		if (head->region[i] == UINT32_MAX || now_ns() >= deadline_ns)
			return false;
	}
	clean->snapshot_region = head->region[0];
	clean->snapshot_sequence = atomic_load(&flash->regions[head->region[0]].sequence);
	stream = stream_create(flash, IO_WRITE, head, head, parts, clean->snapshot_sequence);
	if (!stream)
		return false;
	while (written && stream->at < stream->count)
		written = transfer_some(stream) && now_ns() < deadline_ns;
	clean->snapshot_crc = stream->crc;
	clean->snapshot_bytes = stream->total;
	clean->snapshot_regions = head->regions;
	if (stream->under_way == 0)
		free(stream);
	return written;
}

bool
flash_save(struct flash *flash, const void *geometry, uint32_t geometry_bytes,
	const struct flash_part *parts, uint32_t part_count, uint64_t cas_next, uint64_t objects,
	uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	struct flash_super clean = {.cas_next = cas_next, .objects = objects};
	struct snapshot_head *head = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	bool saved = false;

	if (!head)
		return false;
	memset(head, 0, FLASH_BLOCK);
	if (flash_alive(flash) && log_finish(flash, now_ns, deadline_ns) &&
		finish_journal(flash, now_ns, deadline_ns) &&
		make_head(flash, head, geometry, geometry_bytes, parts, part_count) &&
		write_snapshot(flash, head, parts, &clean, now_ns, deadline_ns) &&
		flush_files(flash)) {
		clean.sequence_next = log_sequence_next(flash);
		super_change(flash, set_clean, &clean);
		saved = super_write_now(flash) && flash_alive(flash);
	}
	/* The device may still read it otherwise, and the process ends. */
	if (saved)
		free(head);
	return saved;
}

/* --- loading ------------------------------------------------------------------------------ */

static bool
read_block(struct flash *flash, const struct region *region, uint64_t offset, void *to)
{
	return writer_run(flash, IO_READ, region->file, region->base + offset, to, FLASH_BLOCK,
		       false) == 0;
}

/* The regions that the head names are the snapshot's, one after the other. */
static bool
regions_are_its(struct flash *flash, const struct snapshot_head *head, uint64_t sequence)
{
	struct flash_region_header *header = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	bool its = header != NULL;

	for (uint32_t i = 0; its && i < head->regions; i++) {
		its = head->region[i] < flash->region_count &&
		      read_block(flash, &flash->regions[head->region[i]], 0, header) &&
		      layout_region_valid(header, flash->id) &&
		      header->kind == FLASH_REGION_SNAPSHOT &&
		      (i == 0 ? header->sequence == sequence : header->sequence > sequence);
		sequence = its ? header->sequence : 0;
	}
	free(header);
	return its;
}

static bool
head_makes_sense(
	struct flash *flash, const struct snapshot_head *head, const struct flash_super *found)
{
	uint64_t total = FLASH_BLOCK;

	if (head->parts > FLASH_PARTS_MAX || head->regions != found->snapshot_regions ||
		head->regions == 0 || head->regions > REGIONS_MAX ||
		head->geometry_bytes > FLASH_GEOMETRY_MAX)
		return false;
	for (uint32_t i = 0; i < head->parts; i++) {
		if (head->part_bytes[i] % FLASH_BLOCK != 0 ||
			head->part_bytes[i] > found->snapshot_bytes)
			return false;
		total += head->part_bytes[i];
	}
	return total == found->snapshot_bytes && total <= head->regions * payload(flash) &&
	       regions_are_its(flash, head, found->snapshot_sequence);
}

static bool
read_parts(struct flash *flash, const struct snapshot_head *head, const struct flash_part *parts,
	const struct flash_super *found)
{
	const struct flash_recovered *recovered = flash->options.recovered;
	/* The head goes through once more, for the checksum. */
	void *block = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	struct stream *stream =
		block ? stream_create(flash, IO_READ, head, block, parts, found->snapshot_sequence)
		      : NULL;
	bool fine = stream != NULL;

	while (fine && stream->at < stream->count) {
		fine = transfer_some(stream);
		if (recovered != NULL && recovered->progress != NULL)
			recovered->progress(flash->options.items_context,
				"bytes of the saved index", stream->done, stream->total);
	}
	fine = fine && stream->crc == found->snapshot_crc;
	/* What the device still has is left to it. */
	if (stream && stream->under_way == 0) {
		free(stream);
		free(block);
	}
	return fine;
}

bool
snapshot_is_whole(struct flash *flash, const struct flash_super *found)
{
	struct snapshot_head *head = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	struct flash_part parts[FLASH_PARTS_MAX] = {{0}};
	bool whole =
		head != NULL && found->snapshot_sequence != 0 &&
		found->snapshot_region < flash->region_count &&
		read_block(flash, &flash->regions[found->snapshot_region], FLASH_BLOCK, head) &&
		head_makes_sense(flash, head, found);

	for (uint32_t i = 0; whole && i < head->parts; i++) {
		parts[i].bytes = head->part_bytes[i];
		if (parts[i].bytes > 0)
			whole = (parts[i].data = pages_reserve(parts[i].bytes, FLASH_BLOCK)) !=
				NULL;
	}
	whole = whole && read_parts(flash, head, parts, found);
	for (uint32_t i = 0; i < FLASH_PARTS_MAX; i++)
		if (parts[i].data != NULL)
			pages_release(parts[i].data, parts[i].bytes);
	free(head);
	return whole;
}

bool
snapshot_load(struct flash *flash, const struct flash_super *found)
{
	const struct flash_recovered *recovered = flash->options.recovered;
	struct snapshot_head *head = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	struct flash_part parts[FLASH_PARTS_MAX];
	bool whole = false;

	if (!head)
		return false;
	if (found->snapshot_sequence != 0 && found->snapshot_region < flash->region_count &&
		read_block(flash, &flash->regions[found->snapshot_region], FLASH_BLOCK, head) &&
		head_makes_sense(flash, head, found)) {
		uint32_t count =
			recovered->load(flash->options.items_context, head->geometry, parts);
		bool fits = count != 0 && count == head->parts;

		for (uint32_t i = 0; i < count && fits; i++)
			fits = parts[i].bytes == head->part_bytes[i];
		if (count != 0) {
			whole = fits && read_parts(flash, head, parts, found);
			whole = recovered->loaded(
					flash->options.items_context, head->geometry, whole) &&
				whole;
		}
	}
	free(head);
	return whole;
}
