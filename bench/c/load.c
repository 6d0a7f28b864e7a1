/* Clients that cost next to nothing: epoll, one thread, loopback, each sends its next call when the last has ended.
 *
 * usage: load PORT PATH BODY CLIENTS CALLS SECONDS HEADERS EVENTS RAMP [KEEP]
 *
 * BODY is a file; ten zeros behind "call-" in it become the number of the call, ten behind ":" after "~bench:raw" too.
 * HEADERS is a file with one header line for each client in turn ("-": none). After CALLS calls, or SECONDS, no new call
 * begins. EVENTS: how many stamped events ("@@" and twenty digits) each answer must hold at least, 0: not looked at. RAMP: seconds over
 * which the clients begin. KEEP: a file
 * for the bodies of whole answers, each behind its number and length (2 x 8 bytes).
 * Prints one JSON line: calls done, errors, seconds, bytes, and percentiles in microseconds of the calls and events.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 16384, READ = 1 << 18, STAMP = 20, DIGITS = 10, LAG_MAX = 1 << 22, GRACE_S = 60, TURN = 65536 };
typedef unsigned long long u64;

typedef struct {
    int fd, running, in_body, chunked, status, closes;
    char request[HEAD];                /* head, then the body's parts follow */
    size_t request_size, written, whole;
    char digits[24];
    char head[HEAD];
    size_t head_size;
    u64 started, first;
    long left, number;                 /* left: of the body; of the chunk */
    int chunk_state, stamp_state;      /* chunk: 0 size, 1 data, 2 its end, 3 the last line */
    char stamp[STAMP + 1];
    long events;
    char *body;
    size_t body_size, body_room;
} Client;

static int poller, port, keep = -1;
static char *body;
static size_t body_size, number_at, raw_at;
static long calls, begun, done, errors, expected, last_status, lag_count;
static u64 bytes, *call_ns, *lags;
static char **headers;
static int header_count;
static const char *path;

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static int by_size(const void *a, const void *b) { return *(u64 *)a < *(u64 *)b ? -1 : *(u64 *)a > *(u64 *)b; }
static double percentile(u64 *sorted, size_t count, double share) {
    size_t at = share * count;
    return count ? sorted[at < count ? at : count - 1] / 1000.0 : 0;
}

static int dial(Client *c, int index) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(c->fd, (void *)&to, sizeof to)) { close(c->fd); return -1; }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
    c->request_size = snprintf(c->request, HEAD,
        "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: bench\r\naccept: */*\r\ncontent-type: application/json\r\n%s%scontent-length: %zu\r\n\r\n",
        path, port, header_count ? headers[index % header_count] : "", header_count ? "\r\n" : "", body_size);
    return 0;
}

static void poll_out(Client *c, int on) {
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

/* The request's parts, with the call's number in the two places that want it. */
static int parts(Client *c, struct iovec *to) {
    size_t first = number_at < raw_at ? number_at : raw_at, second = number_at < raw_at ? raw_at : number_at;
    int count = 0;
    size_t at = 0;
    to[count++] = (struct iovec){c->request, c->request_size};
    for (int i = 0; i < 2; i++) {
        size_t place = i ? second : first;
        if (place >= body_size) break;
        to[count++] = (struct iovec){body + at, place - at};
        to[count++] = (struct iovec){c->digits, DIGITS};
        at = place + DIGITS;
    }
    to[count++] = (struct iovec){body + at, body_size - at};
    return count;
}

/* -1: the peer is gone. */
static int write_on(Client *c) {
    while (c->written < c->whole) {
        struct iovec all[8], *from = all;
        int count = parts(c, all);
        size_t skip = c->written;
        while (skip >= from->iov_len) { skip -= from->iov_len; from++; count--; }
        from->iov_base = (char *)from->iov_base + skip;
        from->iov_len -= skip;
        ssize_t sent = writev(c->fd, from, count);
        if (sent < 0 && errno == EAGAIN) { poll_out(c, 1); return 0; }
        if (sent < 0) return -1;
        c->written += sent;
        if (c->written == c->whole) poll_out(c, 0);
    }
    return 0;
}

static int begin(Client *c, int stopping) {
    c->running = 0;
    if (stopping || begun >= calls) return 0;
    c->running = 1;
    c->number = begun++;
    snprintf(c->digits, sizeof c->digits, "%010ld", c->number);
    c->written = c->head_size = c->body_size = 0;
    c->whole = c->request_size + body_size;
    c->in_body = c->chunk_state = c->stamp_state = 0;
    c->left = c->events = 0;
    c->first = 0;
    c->started = now();
    return write_on(c);
}

static void look(Client *c, const char *data, size_t size, u64 t) {
    if (keep >= 0) {
        while (c->body_size + size > c->body_room) c->body = realloc(c->body, c->body_room = 2 * c->body_room + TURN);
        memcpy(c->body + c->body_size, data, size);
        c->body_size += size;
    }
    if (!expected) return;
    for (size_t i = 0; i < size;) {
        if (!c->stamp_state) {
            const char *found = memchr(data + i, '@', size - i);
            if (!found) return;
            i = found - data + 1;
            c->stamp_state = 1;
        } else if (c->stamp_state == 1) {
            c->stamp_state = data[i] == '@' ? 2 : 0;
            i += c->stamp_state == 2;
        } else {
            char ch = data[i++];
            if (ch < '0' || ch > '9') { c->stamp_state = 0; continue; }
            c->stamp[c->stamp_state - 2] = ch;
            if (++c->stamp_state < 2 + STAMP) continue;
            c->stamp_state = 0;
            c->events++;
            u64 sent = strtoull(c->stamp, 0, 10);
            if (lag_count < LAG_MAX) lags[lag_count++] = t > sent ? t - sent : 0;
        }
    }
}

/* 1: the answer is whole. */
static int take(Client *c, const char *data, size_t size, u64 t) {
    bytes += size;
    if (!c->chunked) {
        look(c, data, size, t);
        c->left -= size;
        return c->left <= 0;
    }
    for (size_t i = 0; i < size;) {
        if (c->chunk_state == 0) {
            char ch = data[i++] | 32;
            if (ch == ('\n' | 32)) c->chunk_state = c->left ? 1 : 3;
            else if (ch >= '0' && ch <= '9') c->left = c->left * 16 + ch - '0';
            else if (ch >= 'a' && ch <= 'f') c->left = c->left * 16 + ch - 'a' + 10;
        } else if (c->chunk_state == 1) {
            size_t part = size - i < (size_t)c->left ? size - i : (size_t)c->left;
            look(c, data + i, part, t);
            i += part;
            if (!(c->left -= part)) c->chunk_state = 2;
        } else if (data[i++] == '\n') {
            if (c->chunk_state == 3) return 1;
            c->chunk_state = 0;
        }
    }
    return 0;
}

static void ended(Client *c, u64 t) {
    if (c->status != 200 || c->events < expected) {
        errors++;
        last_status = c->status;
        return;
    }
    call_ns[done++] = t - c->started;
    if (keep < 0) return;
    u64 about[2] = {c->number, c->body_size};
    if (write(keep, about, sizeof about) < 0 || write(keep, c->body, c->body_size) < 0) exit(1);
}

/* 1: the answer is whole; -1: it broke off. */
static int receive(Client *c) {
    static char room[READ];
    for (;;) {
        ssize_t got = recv(c->fd, room, sizeof room, 0);
        if (got < 0 && errno == EAGAIN) return 0;
        if (got <= 0) return -1;
        u64 t = now();
        char *data = room;
        size_t size = got;
        if (!c->in_body) {
            size_t old = c->head_size, part = HEAD - 1 - old < size ? HEAD - 1 - old : size;
            memcpy(c->head + old, data, part);
            c->head[c->head_size += part] = 0;
            char *stop = strstr(c->head, "\r\n\r\n");
            if (!stop) continue;
            size_t head = stop + 4 - c->head;
            *stop = 0;
            char *length = strcasestr(c->head, "\ncontent-length:");
            c->chunked = !length;
            c->left = length ? atol(length + 16) : 0;
            c->status = atoi(c->head + 9);
            c->closes = strcasestr(c->head, "\nconnection: close") != 0;
            c->in_body = 1;
            data += head - old;
            size -= head - old;
            if (!c->chunked && !c->left) return 1;
        }
        if (!c->first) c->first = t;
        if (size && take(c, data, size, t)) return 1;
    }
}

static void read_headers(const char *file) {
    FILE *from = strcmp(file, "-") ? fopen(file, "r") : 0;
    char *line = 0;
    size_t room = 0;
    while (from && getline(&line, &room, from) > 0) {
        line[strcspn(line, "\r\n")] = 0;
        headers = realloc(headers, sizeof *headers * (header_count + 1));
        headers[header_count++] = strdup(line);
    }
}

static size_t place_of(const char *before) {
    char *found = memmem(body, body_size, before, strlen(before));
    return found ? (size_t)(found - body) + strlen(before) : body_size;
}

static void report(double seconds) {
    qsort(call_ns, done, sizeof *call_ns, by_size);
    qsort(lags, lag_count, sizeof *lags, by_size);
    printf("{\"done\":%ld,\"errors\":%ld,\"status\":%ld,\"seconds\":%.6f,\"bytes\":%llu,\"p50\":%.1f,\"p99\":%.1f,"
           "\"events\":%ld,\"event_p50\":%.1f,\"event_p99\":%.1f}\n",
           done, errors, last_status, seconds, bytes, percentile(call_ns, done, .5), percentile(call_ns, done, .99),
           lag_count, percentile(lags, lag_count, .5), percentile(lags, lag_count, .99));
}

int main(int argc, char **argv) {
    if (argc < 10) { fprintf(stderr, "usage: load PORT PATH BODY CLIENTS CALLS SECONDS HEADERS EVENTS RAMP [KEEP]\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    port = atoi(argv[1]);
    path = argv[2];
    FILE *from = fopen(argv[3], "rb");
    if (!from) { perror(argv[3]); return 1; }
    fseek(from, 0, SEEK_END);
    body = malloc(body_size = ftell(from));
    rewind(from);
    if (fread(body, 1, body_size, from) != body_size) return 1;
    int count = atoi(argv[4]);
    calls = atol(argv[5]);
    double limit = atof(argv[6]);
    read_headers(argv[7]);
    expected = atol(argv[8]);
    double ramp = atof(argv[9]);
    if (argc > 10) keep = open(argv[10], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    number_at = place_of("call-");
    raw_at = place_of("~bench:raw:");
    call_ns = malloc(sizeof *call_ns * (calls + 1));
    lags = malloc(sizeof *lags * LAG_MAX);
    poller = epoll_create1(EPOLL_CLOEXEC);
    Client *clients = calloc(count, sizeof *clients);
    for (int i = 0; i < count; i++)
        if (dial(&clients[i], i)) { fprintf(stderr, "no one listens on port %d\n", port); return 1; }
    u64 start = now(), t = start;
    static struct epoll_event found[1024];
    for (int ready = 0; ready < count || done + errors < begun;) {
        while (ready < count && t - start >= ramp * 1e9 * ready / count)
            if (begin(&clients[ready++], 0) < 0) errors++;
        int events = epoll_wait(poller, found, 1024, ready < count ? 5 : 1000);
        t = now();
        int stopping = (t - start) / 1e9 > limit;
        if ((t - start) / 1e9 > limit + GRACE_S) break;
        for (int i = 0; i < events; i++) {
            Client *c = found[i].data.ptr;
            int state = found[i].events & EPOLLOUT ? write_on(c) : 0;
            if (state >= 0 && found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) state = receive(c);
            if (state == 1) ended(c, now());
            if (state < 0 && c->running) errors++;
            if (state < 0 || (state == 1 && c->closes)) {
                close(c->fd);
                c->running = 0;
                if (dial(c, c - clients)) continue;
            }
            if (state && begin(c, stopping) < 0) errors++;
        }
    }
    errors += begun - done - errors;   /* those that never ended */
    report((now() - start) / 1e9);
    return 0;
}
