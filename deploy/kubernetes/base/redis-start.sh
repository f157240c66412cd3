# Starts Redis with two users. Their passwords are in files in memory, because every process of a host can read a
# command line.
#   gagpo    the run's user, with the password $REDISCLI_AUTH. It may execute what the store needs, on keys gagpo:*.
#   default  the operator, for `redis-cli` inside this container: REDISCLI_AUTH=$(cat /run/redis/operator)
set -eu
umask 077
rights="+@connection +@transaction +@keyspace +@string +@hash +@list +@sortedset +@stream -@admin -@dangerous +eval \
+evalsha +script|load +info +time"
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >/run/redis/operator
{
  cat "$(dirname "$0")/redis.conf"
  echo "requirepass $(cat /run/redis/operator)"
  echo "user gagpo on >$REDISCLI_AUTH ~gagpo:* resetchannels -@all $rights"
  echo "maxmemory ${MAXMEMORY:-0}"
} >/run/redis/redis.conf
exec redis-server /run/redis/redis.conf
