-- Keeps the finished turns of unfinished episodes. ARGV: worker, then ticket id, entry, attempt, index and body of each
-- turn.
-- A turn is kept only after the one before it, and later ones that are there belong to another way to play: they go.
-- Turns of a claim that is not the worker's any more are left out, so that no two workers mix their turns.
local held = {}
for i = 2, #ARGV, 5 do
  local id, entry, attempt, index = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if held[id] == nil then
    held[id] = redis.call('EXISTS', stream_of(id)) == 1 and holds(id, entry, ARGV[1], attempt) or false
  end
  local kept = held[id] and redis.call('HLEN', turns_of(id)) or -1
  if index <= kept then
    for later = index + 1, kept - 1 do redis.call('HDEL', turns_of(id), later) end
    redis.call('HSET', turns_of(id), index, ARGV[i + 4])
  end
end
return 1
