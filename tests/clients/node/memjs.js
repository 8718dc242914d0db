// SPDX-License-Identifier: BSD-2-Clause
// Node's memjs (binary) against a running server: HOST PORT SOCKET UDP_PORT.
'use strict';
const memjs = require('memjs');
const { Report } = require('./report');

const [host, port] = process.argv.slice(2);
const report = new Report();
const says = (got, want, what) => report.same(got, want, what);

report.run(async () => {
	const client = memjs.Client.create(`${host}:${port}`,
		{ timeout: 10, conntimeout: 5, retries: 0, keepAlive: true });
	const value = async (key) => {
		const got = await client.get(key);
		return got.value === null ? null : got.value.toString('latin1');
	};
	await client.flush();
	says(await client.set('a', 'value', {}), true, 'set');
	says(await value('a'), 'value', 'get');
	says(await value('missing'), null, 'get of a missing key');
	const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
	says(await client.set('bytes', bytes, {}), true, 'set of all byte values');
	says(await value('bytes'), bytes.toString('latin1'), 'get of all byte values');
	says(await client.set('empty', '', {}), true, 'set of nothing');
	says(await value('empty'), '', 'get of nothing');
	const large = Buffer.alloc(1000000, 'abcdefg');
	says(await client.set('large', large, {}), true, 'set of a large value');
	says(large.equals((await client.get('large')).value), true, 'get of a large value');
	says(await client.set('k'.repeat(250), 'long', {}), true, 'set, key of 250 bytes');
	says(await value('k'.repeat(250)), 'long', 'get, key of 250 bytes');

	says(await client.add('a', 'no', {}), false, 'add of a present key');
	says(await client.add('new', 'b', {}), true, 'add');
	says(await client.replace('gone', 'x', {}), false, 'replace of a missing key');
	says(await client.replace('new', 'B', {}), true, 'replace');
	says(await client.append('new', 'c'), true, 'append');
	says(await client.append('gone', 'c').catch(() => false), false, 'append to a missing key');
	says(await value('new'), 'Bc', 'value after append');	// its prepend sends APPEND too
	says((await client.increment('n', 5, { initial: 10 })).value, 10, 'increment with an initial value');
	says((await client.increment('n', 5, { initial: 10 })).value, 15, 'increment');
	says((await client.decrement('n', 20, {})).value, 0, 'decrement stops at 0');

	const keys = Array.from({ length: 200 }, (_, i) => `m${i}`);
	const sets = await Promise.all(keys.map((key) => client.set(key, `value of ${key}`, {})));
	says(sets.every((stored) => stored === true), true, 'many sets at once');
	const gets = await Promise.all(keys.map(value));
	says(gets.every((got, i) => got === `value of m${i}`), true, 'many gets at once');
	says(await client.delete('m1'), true, 'delete');
	says(await client.delete('m1'), false, 'delete of a missing key');
	says(await client.set('t1', 'x', { expires: 1 }), true, 'set for 1 s');
	says(await client.set('t2', 'x', { expires: 1 }), true, 'set for 1 s, to be touched');
	says(await client.touch('t2', 100), true, 'touch');
	says(await client.touch('gone', 100), false, 'touch of a missing key');
	await new Promise((resolve) => setTimeout(resolve, 2200));
	says(await value('t1'), null, 'value after it has expired');
	says(await value('t2'), 'x', 'touched value');
	const stats = await new Promise((resolve, reject) => {
		client.stats((error, _server, got) => (error ? reject(error) : resolve(got)));
	});
	says(Number(stats.curr_items) > 150, true, 'stats: curr_items');
	await client.flush();
	says(await value('a'), null, 'get after flush');
	client.quit();
});
