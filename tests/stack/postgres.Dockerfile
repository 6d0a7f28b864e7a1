# PostgreSQL from the distribution, started as the official image is: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD_FILE.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql > /dev/null
ENV PGDATA=/var/lib/postgresql/data
RUN ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ 2> /dev/null; mkdir -p $PGDATA && chown postgres $PGDATA
RUN printf '%s\n' '#!/bin/sh' 'set -eu' \
  'chown postgres "$PGDATA" && install -o postgres -m 400 "$POSTGRES_PASSWORD_FILE" /tmp/password' \
  'as() { su postgres -c "PATH=$PATH PGDATA=$PGDATA $1"; }' \
  '[ -s "$PGDATA/PG_VERSION" ] || {' \
  '  as "initdb -U $POSTGRES_USER --pwfile=/tmp/password -A scram-sha-256 --auth-local=trust >&2"' \
  '  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"' \
  '  as "pg_ctl -w start >&2 && createdb -U $POSTGRES_USER $POSTGRES_DB; pg_ctl -w stop >&2"' \
  '}' \
  "exec su postgres -c \"PATH=\$PATH exec postgres -D \$PGDATA -c listen_addresses='*'\"" > /start && chmod +x /start
CMD ["/start"]
