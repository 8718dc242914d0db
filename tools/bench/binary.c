/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The binary protocol. A get of several keys is as many quiet GETKQ, which answer hits only, and a
 * NOOP, whose answer says that all are done.
 *
 *	byte	0	1	2	4	5	6	8	12	16
 *	request	0x80	opcode	keylen	extlen	type	vbucket	bodylen	opaque	cas	extras key value
 *	reply	0x81	opcode	keylen	extlen	type	status	bodylen	opaque	cas	extras key value
 *
 * Requests of one opcode have one opaque, by which an answer to another opcode is told.
 */
#include "protocol.h"

#include <arpa/inet.h>
#include <string.h>

#define HEADER_SIZE 24
#define FLAGS_SIZE 4 /* the extras of a value that was found */
#define NUMBER_SIZE 8
#define EXTRAS_MAX 20
#define NEVER_CREATE UINT32_MAX
#define OPAQUE 0x48426e00 /* and the opcode */
/* A value, its key and its flags; and whatever else is said. */
#define VALUE_BODY_MAX (UINT32_C(1) << 30 | 1024)
#define OTHER_BODY_MAX 1024

enum opcode {
	OPCODE_SET = 0x01,
	OPCODE_DELETE = 0x04,
	OPCODE_INCREMENT = 0x05,
	OPCODE_NOOP = 0x0a,
	OPCODE_GETK = 0x0c,
	OPCODE_GETKQ = 0x0d,
	OPCODE_APPEND = 0x0e,
	OPCODE_TOUCH = 0x1c,
	OPCODE_GATK = 0x23,
};

enum status {
	STATUS_OK = 0x00,
	STATUS_NOT_FOUND = 0x01,
	STATUS_NOT_STORED = 0x05,
	STATUS_NO_MEMORY = 0x82,
};

static size_t
get_size_max(const struct workload *workload, unsigned keys)
{
	return (keys + (size_t)1) * (HEADER_SIZE + workload->key_size);
}

static size_t
request_size_max(const struct workload *workload)
{
	return HEADER_SIZE + EXTRAS_MAX + workload->key_size;
}

static char *
write_u32(char *at, uint32_t number)
{
	uint32_t wire = htonl(number);

	memcpy(at, &wire, sizeof wire);
	return at + sizeof wire;
}

static uint32_t
read_u32(const char *at)
{
	uint32_t wire;

	memcpy(&wire, at, sizeof wire);
	return ntohl(wire);
}

static unsigned
read_u16(const char *at)
{
	return (unsigned)(unsigned char)at[0] << 8 | (unsigned char)at[1];
}

static char *
write_header(char *at, enum opcode opcode, size_t key_size, size_t extras_size, size_t body_size)
{
	memset(at, 0, HEADER_SIZE);
	at[0] = (char)0x80;
	at[1] = (char)opcode;
	at[3] = (char)key_size; /* WORKLOAD_KEY_SIZE_MAX fits one byte */
	at[4] = (char)extras_size;
	write_u32(at + 8, (uint32_t)body_size);
	write_u32(at + 12, OPAQUE | opcode);
	return at + HEADER_SIZE;
}

static char *
write_key(const struct workload *workload, char *at, uint32_t key)
{
	workload_write_key(workload, at, key);
	return at + workload->key_size;
}

static char *
write_get(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	enum opcode opcode = count == 1 ? OPCODE_GETK : OPCODE_GETKQ;

	for (unsigned i = 0; i < count; i++) {
		at = write_header(at, opcode, workload->key_size, 0, workload->key_size);
		at = write_key(workload, at, keys[i]);
	}
	return count == 1 ? at : write_header(at, OPCODE_NOOP, 0, 0, 0);
}

static char *
write_gets(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	const size_t size = workload->key_size;
	char header[HEADER_SIZE];

	write_header(header, OPCODE_GETK, size, 0, size);
	for (unsigned i = 0; i < count; i++) {
		memcpy(at, header, sizeof header);
		workload_write_key(workload, at + sizeof header, keys[i]);
		at += sizeof header + size;
	}
	return at;
}

static char *
write_store(const struct workload *workload, char *at, const struct request *request)
{
	uint64_t size = workload_value_size(workload, request->key, request->version);
	bool is_set = request->operation == OPERATION_SET;
	size_t extras = is_set ? 8 : 0;

	at = write_header(at, is_set ? OPCODE_SET : OPCODE_APPEND, workload->key_size, extras,
		extras + workload->key_size + size);
	if (is_set)
		at = write_u32(write_u32(at, workload->flags), request->ttl);
	at = write_key(workload, at, request->key);
	workload_write_value(workload, at, size, request->key, request->version);
	return at + size;
}

static char *
write(const struct workload *workload, char *at, const struct request *request)
{
	size_t key_size = workload->key_size;

	switch (request->operation) {
	case OPERATION_GET:
		return write_get(workload, at, &request->key, 1);
	case OPERATION_SET:
	case OPERATION_APPEND:
		return write_store(workload, at, request);
	case OPERATION_GAT:
	case OPERATION_TOUCH:
		at = write_header(at,
			request->operation == OPERATION_GAT ? OPCODE_GATK : OPCODE_TOUCH, key_size,
			4, 4 + key_size);
		at = write_u32(at, request->ttl);
		break;
	case OPERATION_INCR:
		at = write_header(at, OPCODE_INCREMENT, key_size, 20, 20 + key_size);
		at = write_u32(write_u32(at, 0), 1); /* by one */
		at = write_u32(write_u32(at, 0), 0); /* first value */
		at = write_u32(at, NEVER_CREATE);
		break;
	default:
		at = write_header(at, OPCODE_DELETE, key_size, 0, key_size);
		break;
	}
	return write_key(workload, at, request->key);
}

static enum opcode
opcode_of(enum operation operation, bool several)
{
	switch (operation) {
	case OPERATION_GET:
		return several ? OPCODE_GETKQ : OPCODE_GETK;
	case OPERATION_SET:
		return OPCODE_SET;
	case OPERATION_GAT:
		return OPCODE_GATK;
	case OPERATION_TOUCH:
		return OPCODE_TOUCH;
	case OPERATION_INCR:
		return OPCODE_INCREMENT;
	case OPERATION_APPEND:
		return OPCODE_APPEND;
	default:
		return OPCODE_DELETE;
	}
}

/* A reply's header, and what it must fit. */
struct header {
	enum operation operation;
	bool several;
	unsigned opcode;
	unsigned key_size;
	unsigned extras_size;
	unsigned status;
	uint32_t body_size;
};

static size_t
say(struct reply *reply, const char *line, size_t taken)
{
	reply->line = line;
	reply->line_size = strlen(line);
	return taken;
}

/* What is wrong with a header, or NULL. It is judged before its body is waited for. */
static const char *
fault_of_header(const struct header *header, const char *at)
{
	enum opcode opcode = opcode_of(header->operation, header->several);
	bool is_value = header->operation == OPERATION_GET || header->operation == OPERATION_GAT;

	if ((unsigned char)at[0] != 0x81)
		return "(no reply of the binary protocol)";
	if (header->opcode != opcode && !(header->several && header->opcode == OPCODE_NOOP))
		return "(a reply to another opcode)";
	if (read_u32(at + 12) != (OPAQUE | header->opcode))
		return "(a reply to another opaque)";
	if (at[5] != 0 || (uint64_t)header->key_size + header->extras_size > header->body_size)
		return "(lengths or type are wrong)";
	if (header->body_size > (is_value ? VALUE_BODY_MAX : OTHER_BODY_MAX))
		return "(a body longer than any answer)";
	return NULL;
}

/* The kind of a whole reply whose status says that all went well. */
static enum reply_kind
kind_of_success(const struct header *header, const char *body, struct reply *reply)
{
	switch (header->operation) {
	case OPERATION_GET:
	case OPERATION_GAT:
		if (header->opcode == OPCODE_NOOP)
			return header->body_size == 0 ? REPLY_END : REPLY_BROKEN;
		if (header->extras_size != FLAGS_SIZE || header->key_size == 0)
			return REPLY_BROKEN;
		reply->flags = read_u32(body);
		reply->key = body + FLAGS_SIZE;
		reply->key_size = header->key_size;
		reply->value = reply->key + header->key_size;
		reply->value_size = header->body_size - FLAGS_SIZE - header->key_size;
		return REPLY_VALUE;
	case OPERATION_INCR:
		if (header->body_size != NUMBER_SIZE || header->extras_size || header->key_size)
			return REPLY_BROKEN;
		reply->value = body;
		reply->value_size = NUMBER_SIZE;
		return REPLY_NUMBER;
	case OPERATION_TOUCH:
		/* The item's flags. */
		if (header->extras_size == FLAGS_SIZE && header->body_size == FLAGS_SIZE)
			return REPLY_DONE;
		break;
	default:
		break;
	}
	return header->body_size == 0 ? REPLY_DONE : REPLY_BROKEN;
}

static enum reply_kind
kind_of_status(const struct header *header, const char *body, struct reply *reply)
{
	bool is_store = header->operation == OPERATION_SET || header->operation == OPERATION_APPEND;

	if (header->status == STATUS_OK)
		return kind_of_success(header, body, reply);
	if (header->status == STATUS_NO_MEMORY)
		return REPLY_REFUSED;
	if (header->status == STATUS_NOT_STORED && is_store)
		return REPLY_NOT_STORED;
	if (header->status == STATUS_NOT_FOUND && !is_store) {
		/* A quiet get doesn't answer a miss. */
		if (header->several)
			return REPLY_BROKEN;
		return header->operation == OPERATION_GET || header->operation == OPERATION_GAT
			       ? REPLY_END
			       : REPLY_MISS;
	}
	return REPLY_ERROR;
}

static size_t
parse(const char *at, size_t size, enum operation operation, unsigned keys, struct reply *reply,
	size_t *wanted)
{
	struct header header = {
		.operation = operation,
		.several = operation == OPERATION_GET && keys > 1,
	};

	*wanted = 0;
	reply->kind = REPLY_BROKEN;
	reply->last = true;
	if ((unsigned char)at[0] != 0x81)
		return say(reply, "(no reply of the binary protocol)", size);
	if (size < HEADER_SIZE)
		return 0;
	header.opcode = (unsigned char)at[1];
	header.key_size = read_u16(at + 2);
	header.extras_size = (unsigned char)at[4];
	header.status = read_u16(at + 6);
	header.body_size = read_u32(at + 8);
	const char *fault = fault_of_header(&header, at);
	if (fault)
		return say(reply, fault, HEADER_SIZE);
	size_t whole = HEADER_SIZE + (size_t)header.body_size;
	if (size < whole) {
		*wanted = whole;
		return 0;
	}
	const char *body = at + HEADER_SIZE;
	reply->kind = kind_of_status(&header, body, reply);
	/* An error answers one of several; the NOOP is answered all the same. */
	reply->last = !header.several || header.opcode == OPCODE_NOOP;
	say(reply, "(a body or a status that fits no answer)", 0);
	if (reply->kind != REPLY_BROKEN)
		say(reply, "(an error without words)", 0);
	if (header.status != STATUS_OK && header.body_size > 0) {
		reply->line = body;
		reply->line_size = header.body_size;
	}
	return whole;
}

static size_t
match(const struct workload *workload, const char *at, size_t size, uint32_t key,
	const char **value, uint64_t *value_size)
{
	static const char head[2] = {(char)0x81, OPCODE_GETK};
	static const char extras_and_status[4] = {FLAGS_SIZE, 0, 0, 0};
	size_t key_size = workload->key_size;
	size_t before = HEADER_SIZE + FLAGS_SIZE + key_size;

	if (size < before || memcmp(at, head, sizeof head) != 0 || read_u16(at + 2) != key_size ||
		memcmp(at + 4, extras_and_status, sizeof extras_and_status) != 0 ||
		read_u32(at + 12) != (OPAQUE | OPCODE_GETK) ||
		read_u32(at + HEADER_SIZE) != workload->flags)
		return 0;
	size_t whole = HEADER_SIZE + (size_t)read_u32(at + 8);
	if (whole < before || whole > size ||
		!workload_is_key(workload, at + HEADER_SIZE + FLAGS_SIZE, key))
		return 0;
	*value = at + before;
	*value_size = whole - before;
	return whole;
}

static const struct protocol binary = {
	.name = "binary",
	.get_size_max = get_size_max,
	.request_size_max = request_size_max,
	.write_get = write_get,
	.write_gets = write_gets,
	.write = write,
	.parse = parse,
	.match = match,
};

const struct protocol *
protocol_binary(void)
{
	return &binary;
}
