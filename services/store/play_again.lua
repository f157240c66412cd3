-- Puts the ticket of a finished episode back, because its body is lost. ARGV: ticket id, group, what is held of the
-- episode, the packed ticket, task and reason. Not fenced by a lease: what is held is the fence.
-- 1: the ticket is back, or its attempts are used up; 0: somebody put it back before; -1: a manifest has the group.
local id, group, reference, ticket, cause = unpack(ARGV)
if redis.call('HGET', episodes, id) ~= reference then return 0 end
local order = redis.call('ZSCORE', ready, group)
if not order and not redis.call('ZSCORE', groups, group) then return -1 end
local entry = redis.call('XADD', stream_of(id), '*', 'ticket', ticket) -- first: a full Redis refuses the first write
redis.call('HSET', outstanding, id, entry)
redis.call('HDEL', episodes, id)
redis.call('HINCRBY', counters, 'bytes', 0 - #reference)
if order then
  redis.call('ZREM', ready, group)
  redis.call('ZADD', groups, order, group)
end
if redis.call('HINCRBY', lost_bodies, id, 1) >= MAX_ATTEMPTS then
  redis.call('HSET', failed, id, cause)
  withdraw(id, entry)
end
return 1
