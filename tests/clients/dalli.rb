# SPDX-License-Identifier: BSD-2-Clause
# ruby-dalli (binary protocol) against a running server: HOST PORT SOCKET UDP_PORT.

begin
  require 'logger'
  require 'dalli'
rescue LoadError => e
  puts "SKIP: #{e.message}"
  exit 77
end
Dalli.logger = Logger.new(IO::NULL)

host, port, path = ARGV
$checks = $wrong = 0

def same(got, want, what)
  $checks += 1
  return if got == want

  $wrong += 1
  puts "wrong: #{what}: got #{got.inspect[0, 80]}, not #{want.inspect[0, 80]}"
end

def raises(error, what)
  yield
  same('no error', error, what)
rescue error
  same(true, true, what)
end

def whole_client(address, options, name)
  c = Dalli::Client.new(address, options)
  check = ->(got, want, what) { same(got, want, "#{name} #{what}") }
  c.flush
  check.(c.version.values.first.to_s.match?(/\A[0-9.]+\z/), true, 'version of digits and dots')
  check.(c.set('a', 'value') ? true : false, true, 'set')
  check.(c.get('a'), 'value', 'get')
  check.(c.get('missing'), nil, 'get of a missing key')
  thing = { 'list' => [1, 2.5, nil], 'sym' => :x }
  c.set('thing', thing)
  check.(c.get('thing'), thing, 'an object (uses flags)')
  bytes = (0..255).map(&:chr).join.b
  c.set('bytes', bytes, 0, raw: true)
  check.(c.get('bytes', raw: true).b, bytes, 'all byte values')
  c.set('empty', '', 0, raw: true)
  check.(c.get('empty', raw: true), '', 'nothing')
  large = bytes * 3900
  c.set('large', large, 0, raw: true)
  check.(c.get('large', raw: true).b == large, true, 'a large value')
  c.set('k' * 250, 'long')
  check.(c.get('k' * 250), 'long', 'key of 250 bytes')

  check.(c.add('a', 'no') ? true : false, false, 'add of a present key')
  check.(c.add('new', 'b', 0, raw: true) ? true : false, true, 'add')
  check.(c.replace('gone', 'x').to_i, 0, 'replace of a missing key gives no cas')
  check.(c.replace('new', 'B', 0, raw: true) ? true : false, true, 'replace')
  check.(c.append('new', 'c'), true, 'append')
  check.(c.prepend('new', 'a'), true, 'prepend')
  check.(c.append('gone', 'c'), false, 'append to a missing key')
  check.(c.get('new', raw: true), 'aBc', 'value after append and prepend')

  _value, cas = c.get_cas('new')
  check.(c.set_cas('new', 'cas', cas) ? true : false, true, 'set with a cas')
  check.(c.set_cas('new', 'old', cas) ? true : false, false, 'set with an old cas')
  check.(c.cas('new') { |v| "#{v}!" } ? true : false, true, 'cas with a block')
  check.(c.get('new'), 'cas!', 'value after cas')
  check.(c.cas('gone') { |v| v }, nil, 'cas of a missing key')
  check.(c.delete_cas('new', 1), false, 'delete with a wrong cas')

  check.(c.incr('n', 1, 0, 10), 10, 'incr with an initial value')
  check.(c.incr('n', 5), 15, 'incr')
  check.(c.decr('n', 20), 0, 'decr stops at 0')
  check.(c.incr('gone', 1), nil, 'incr of a missing key')
  c.set('n', 'word', 0, raw: true)
  raises(Dalli::DalliError, "#{name} incr of a word") { c.incr('n', 1) }

  keys = (0...300).map { |i| "m#{i}" }
  c.multi { keys.each { |k| c.set(k, "value #{k}") } }
  check.(c.get_multi(*keys, 'gone').size, 300, 'get_multi after quiet sets')
  check.(c.get_multi(*keys).all? { |k, v| v == "value #{k}" }, true, 'values of get_multi')
  check.(c.get_multi_cas('m1')['m1'].last.positive?, true, 'get_multi_cas')
  c.multi { c.delete('m1') }
  check.(c.get('m1'), nil, 'quiet delete')
  check.(c.delete('m2'), true, 'delete')
  check.(c.delete('m2') ? true : false, false, 'delete of a missing key')
  check.(c.fetch('fetched', 60) { 'made' }, 'made', 'fetch of a missing key')
  check.(c.fetch('fetched', 60) { 'again' }, 'made', 'fetch of a present key')

  c.set('t1', 'x', 1)
  c.set('t2', 'x', 1)
  c.set('t3', 'x', 1)
  check.(c.touch('t2', 100), true, 'touch')
  check.(c.gat('t3', 100), 'x', 'gat')
  check.(c.touch('gone', 100) ? true : false, false, 'touch of a missing key')
  check.(c.gat('gone', 100), nil, 'gat of a missing key')
  sleep 2.2
  check.(c.get_multi('t1', 't2', 't3'), { 't2' => 'x', 't3' => 'x' }, 'after the second has passed')

  stats = c.stats.values.first
  check.(stats['curr_items'].to_i > 250, true, 'stats: curr_items')
  check.(c.stats(:settings).values.first['maxconns'].to_i.positive?, true, 'stats settings: maxconns')
  check.(c.alive!.to_s != 'nil', true, 'alive!')
  check.(c.flush, [true], 'flush')
  check.(c.get('a'), nil, 'get after flush')
  c.close
end

whole_client("#{host}:#{port}", { compress: false, value_max_bytes: 1 << 20 }, 'tcp')
whole_client(path, { compress: true, value_max_bytes: 1 << 20 }, 'unix')
puts "#{$checks} checks, #{$wrong} wrong"
exit($wrong.zero? ? 0 : 1)
