-- The checkpoint wins: all work in flight is forgotten, counting starts at the checkpoint.
-- ARGV: epoch, holder, step, next group, groups trained.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local step, next, trained = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
for _, stream in ipairs({tickets, evals}) do
  if redis.call('EXISTS', stream) == 1 then
    -- The stream is not deleted: it continues to count, so that no old entry is ever mistaken for a new one.
    redis.call('XGROUP', 'DESTROY', stream, WORKERS)
    redis.call('XTRIM', stream, 'MAXLEN', 0)
    redis.call('XGROUP', 'CREATE', stream, WORKERS, '$')
  end
end
for _, id in ipairs(redis.call('HKEYS', outstanding)) do redis.call('DEL', turns_of(id)) end
redis.call('DEL', outstanding, groups, ready, episodes, manifests, drops, failed, attempts, lost_bodies)
redis.call('HSET', counters, 'issued', next, 'dropped', next - trained, 'trained', trained, 'next_group', next,
  'last_step', step, 'retired_step', step, 'bytes', 0)
redis.call('HDEL', counters, 'version') -- it may be one of a step that is taken again, which nobody may sample any more
return 1
