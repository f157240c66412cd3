-- Deletes evaluation groups that were read. ARGV: epoch, holder, groups. Returns the bytes freed.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local freed = 0
for i = 3, #ARGV do
  if redis.call('ZREM', ready, ARGV[i]) == 1 then freed = freed + forget(ARGV[i]) end
end
return freed
