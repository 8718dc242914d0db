// SPDX-License-Identifier: BSD-2-Clause
// Node's memcached (text) against a running server: HOST PORT SOCKET UDP_PORT.
'use strict';
const Memcached = require('memcached');
const { Report } = require('./report');

const [host, port] = process.argv.slice(2);
const report = new Report();

// Each method as a promise of { error, value }.
function promised(client) {
	return (method, ...args) => new Promise((resolve) => {
		client[method](...args, (error, value) => resolve({ error, value }));
	});
}

async function wholeClient(address, name) {
	const client = new Memcached(address, { timeout: 10000, retries: 1, poolSize: 4 });
	const call = promised(client);
	const says = (got, want, what) => report.same(got, want, `${name} ${what}`);
	const value = async (key) => (await call('get', key)).value;

	says(Boolean((await call('flush')).error), false, 'flush');
	const [{ version }] = (await call('version')).value;
	says(/^[0-9.]+$/.test(version), true, 'version of digits and dots');
	says((await call('set', 'a', 'value', 0)).value, true, 'set');
	says(await value('a'), 'value', 'get');
	says(await value('missing'), undefined, 'get of a missing key');
	const bytes = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)),
		Buffer.from('\r\nEND\r\n')]);
	says((await call('set', 'bytes', bytes, 0)).value, true, 'set of all byte values');
	says(bytes.equals(await value('bytes')), true, 'get of all byte values');
	says((await call('set', 'thing', { list: [1, { two: 2 }] }, 0)).value, true, 'set of an object (uses flags)');
	says(JSON.stringify(await value('thing')), '{"list":[1,{"two":2}]}', 'get of an object');
	says((await call('set', 'number', 42, 0)).value, true, 'set of a number (uses flags)');
	says(await value('number'), 42, 'get of a number');
	const large = 'abcdefgh'.repeat(125000);
	says((await call('set', 'large', large, 0)).value, true, 'set of a large value');
	says(await value('large') === large, true, 'get of a large value');
	says((await call('set', 'k'.repeat(250), 'long', 0)).value, true, 'set, key of 250 bytes');
	says(await value('k'.repeat(250)), 'long', 'get, key of 250 bytes');

	says((await call('add', 'a', 'no', 0)).value || false, false, 'add of a present key');
	says((await call('add', 'new', 'b', 0)).value, true, 'add');
	says((await call('replace', 'gone', 'x', 0)).value || false, false, 'replace of a missing key');
	says((await call('replace', 'new', 'B', 0)).value, true, 'replace');
	says((await call('append', 'new', 'c')).value, true, 'append');
	says((await call('prepend', 'new', 'a')).value, true, 'prepend');
	says(await value('new'), 'aBc', 'value after append and prepend');
	const { cas } = (await call('gets', 'new')).value;
	says((await call('cas', 'new', '1', cas, 0)).value, true, 'cas');
	says((await call('cas', 'new', '2', cas, 0)).value || false, false, 'old cas');
	says(await value('new'), '1', 'value after cas');
	says((await call('incr', 'number', 8)).value, 50, 'incr');
	says((await call('decr', 'number', 60)).value, 0, 'decr stops at 0');
	says((await call('incr', 'gone', 1)).value, false, 'incr of a missing key');

	const keys = Array.from({ length: 200 }, (_, i) => `m${i}`);
	const sets = await Promise.all(keys.map((key) => call('set', key, `value of ${key}`, 0)));
	says(sets.every((r) => r.value === true), true, 'many sets at once');
	const many = (await call('getMulti', [...keys, 'gone'])).value;
	says(Object.keys(many).length, 200, 'getMulti');
	says(keys.every((key) => many[key] === `value of ${key}`), true, 'values of getMulti');
	says((await call('del', 'm1')).value, true, 'del');
	says((await call('del', 'm1')).value, false, 'del of a missing key');

	says((await call('set', 't1', 'x', 1)).value, true, 'set for 1 s');
	says((await call('set', 't2', 'x', 1)).value, true, 'set for 1 s, to be touched');
	says((await call('touch', 't2', 100)).value, true, 'touch');
	says((await call('touch', 'gone', 100)).value, false, 'touch of a missing key');
	await new Promise((resolve) => setTimeout(resolve, 2200));
	says(await value('t1'), undefined, 'value after it has expired');
	says(await value('t2'), 'x', 'touched value');
	const [stats] = (await call('stats')).value;
	says(stats.curr_items > 150, true, 'stats: curr_items');
	const [settings] = (await call('settings')).value;
	says(settings.maxconns > 0, true, 'stats settings: maxconns');
	says(Array.isArray((await call('slabs')).value), true, 'stats slabs');
	says(Array.isArray((await call('items')).value), true, 'stats items');
	await call('flush');
	says(await value('a'), undefined, 'get after flush');
	client.end();
}

report.run(async () => {
	await wholeClient(`${host}:${port}`, 'tcp');
});
