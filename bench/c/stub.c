/* A policy server that costs next to nothing: epoll, one thread, loopback, answers made beforehand.
 *
 * usage: stub PORT DIR
 *
 * The last "~bench:NAME:ARG~" in a request's body chooses the answer:
 *   DIR/NAME.json   a whole body; with ARG > 0 its last bytes wait for ARG microseconds
 *   DIR/NAME.sse    a stream, one send() per event, one event each ARG microseconds
 *   raw             DIR/raw.bin holds whole HTTP answers; number ARG of them, by the (offset, length) pairs of DIR/raw.idx
 * A body without one (a probe) gets DIR/probe.json, or DIR/probe.sse where it asks for a stream. Twenty digits behind
 * "@@" in an event become the time of its sending in nanoseconds (CLOCK_MONOTONIC), in every place of the event. The
 * usage chunk of a stream is sent only to who asks for it, as vLLM does.
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
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CONNS = 16384, NAMES = 64, EVENTS = 4096, HELD = 512, ROOM = 1 << 16, STAMP = 20, STAMPED = 4096 };

typedef struct { char *data; size_t size; } Bytes;

typedef struct {
    char name[32];
    Bytes whole;                       /* head and body */
    char *events[EVENTS];              /* HTTP chunks */
    size_t lengths[EVENTS];
    int count, usage;                  /* usage: index of the usage chunk, -1 for none */
} Answer;

typedef struct {
    int fd, slot, polled_out, timed;
    char *in;
    size_t in_size, in_room;
    const char *out;                   /* what is being sent */
    size_t out_size, out_done;
    const char *held;                  /* sent when due */
    size_t held_size;
    Answer *stream;
    int next, with_usage;
    unsigned long long due, step;      /* nanoseconds */
    char event[STAMPED];               /* a stamped copy */
} Conn;

static Conn *conns[CONNS];
static Answer answers[NAMES];
static int answer_count, poller;
static Conn *heap[CONNS];
static int heap_size;
static Bytes raw, raw_index;
static const char *folder;

static unsigned long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static Bytes map_file(const char *name, const char *suffix) {
    char path[4096];
    struct stat st;
    Bytes found = {0, 0};
    snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return found;
    if (!fstat(fd, &st) && st.st_size) {
        found.size = st.st_size;
        found.data = mmap(0, found.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (found.data == MAP_FAILED) { perror(path); exit(1); }
    }
    close(fd);
    return found;
}

static Answer *answer(const char *name, const char *suffix) {
    for (int i = 0; i < answer_count; i++)
        if (!strcmp(answers[i].name, name)) return &answers[i];
    Bytes file = map_file(name, suffix);
    if (!file.size || answer_count == NAMES) return 0;
    Answer *a = &answers[answer_count++];
    snprintf(a->name, sizeof a->name, "%s", name);
    a->usage = -1;
    if (!strcmp(suffix, ".json")) {
        a->whole.data = malloc(file.size + 128);
        int head = sprintf(a->whole.data, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", file.size);
        memcpy(a->whole.data + head, file.data, file.size);
        a->whole.size = head + file.size;
        return a;
    }
    for (char *p = file.data, *end = file.data + file.size; p < end && a->count < EVENTS;) {
        char *stop = memmem(p, end - p, "\n\n", 2), *chunk;
        size_t size = (stop ? stop + 2 : end) - p;
        if (memmem(p, size, "\"choices\":[],", 13)) a->usage = a->count;
        a->events[a->count] = chunk = malloc(size + 32);
        int head = sprintf(chunk, "%zx\r\n", size);
        memcpy(chunk + head, p, size);
        memcpy(chunk + head + size, "\r\n", 2);
        a->lengths[a->count++] = head + size + 2;
        p += size;
    }
    return a;
}

/* Timers: a heap of connections by when they are due. */
static void place(Conn *c, int slot) { heap[slot] = c; c->slot = slot; }
static void sift(int slot) {
    Conn *c = heap[slot];
    for (; slot && heap[(slot - 1) / 2]->due > c->due; slot = (slot - 1) / 2) place(heap[(slot - 1) / 2], slot);
    for (int kid; (kid = 2 * slot + 1) < heap_size; slot = kid) {
        if (kid + 1 < heap_size && heap[kid + 1]->due < heap[kid]->due) kid++;
        if (heap[kid]->due >= c->due) break;
        place(heap[kid], slot);
    }
    place(c, slot);
}
static void untime(Conn *c) {
    if (!c->timed) return;
    c->timed = 0;
    Conn *last = heap[--heap_size];
    if (last != c) { place(last, c->slot); sift(last->slot); }
}
static void wake(Conn *c, unsigned long long due) {
    untime(c);
    c->due = due;
    c->timed = 1;
    place(c, heap_size++);
    sift(c->slot);
}

static void drop(Conn *c) {
    untime(c);
    conns[c->fd] = 0;
    close(c->fd);
    free(c->in);
    free(c);
}

static void poll_out(Conn *c, int on) {
    if (c->polled_out == on) return;
    c->polled_out = on;
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

/* 1: all sent; 0: the socket is full; -1: the peer is gone. */
static int push(Conn *c) {
    while (c->out_done < c->out_size) {
        ssize_t sent = send(c->fd, c->out + c->out_done, c->out_size - c->out_done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) { poll_out(c, 1); return 0; }
        if (sent < 0) return -1;
        c->out_done += sent;
    }
    poll_out(c, 0);
    return 1;
}
static int say(Conn *c, const char *data, size_t size) {
    c->out = data;
    c->out_size = size;
    c->out_done = 0;
    return push(c);
}
static int busy(Conn *c) { return c->out_done < c->out_size || c->stream || c->held; }

/* One event, with the time in it where there is room for one. */
static int say_event(Conn *c, const char *event, size_t size) {
    if (size > sizeof c->event || !memmem(event, size, "@@", 2)) return say(c, event, size);
    memcpy(c->event, event, size);
    char *at = c->event, *end = c->event + size, stamp[STAMP + 1];
    snprintf(stamp, sizeof stamp, "%020llu", now());
    while ((at = memmem(at, end - at, "@@", 2)) && at + 2 + STAMP <= end) {
        memcpy(at + 2, stamp, STAMP);
        at += 2 + STAMP;
    }
    return say(c, c->event, size);
}

/* What is due now, and when the rest is. 0: nothing more to do at once; -1: the peer is gone. */
static int advance(Conn *c) {
    int sent = push(c);
    while (sent == 1 && busy(c)) {
        unsigned long long t = now();
        if (c->due > t) { wake(c, c->due); return 0; }
        if (c->held) {
            const char *rest = c->held;
            c->held = 0;
            sent = say(c, rest, c->held_size);
        } else if (c->next < c->stream->count) {
            int i = c->next++;
            if (i == c->stream->usage && !c->with_usage) continue;
            c->due = c->step ? (c->due + c->step > t ? c->due + c->step : t) : 0;
            sent = say_event(c, c->stream->events[i], c->stream->lengths[i]);
        } else {
            c->stream = 0;
            sent = say(c, "0\r\n\r\n", 5);
        }
    }
    return sent < 0 ? -1 : 0;
}

static int say_raw(Conn *c, unsigned long number) {
    if (!raw.size) { raw = map_file("raw", ".bin"); raw_index = map_file("raw", ".idx"); }
    if ((number + 1) * 16 > raw_index.size) return -1;
    unsigned long long *pair = (unsigned long long *)raw_index.data + 2 * number;
    return say(c, raw.data + pair[0], pair[1]) < 0 ? -1 : 0;
}

static const char *last(const char *from, const char *to, int what) {
    return to > from ? memrchr(from, what, to - from) : 0;
}

static int not_found(Conn *c) {
    static const char none[] = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    return say(c, none, sizeof none - 1) < 0 ? -1 : 0;
}

static int chat(Conn *c, const char *body, size_t size) {
    char name[32] = "probe";
    unsigned long arg = 0;
    const char *stop = last(body, body + size, '~'), *start = stop ? last(body, stop, '~') : 0;
    if (start && !strncmp(start, "~bench:", 7)) sscanf(start + 7, "%31[a-z0-9_]:%lu", name, &arg);
    int streamed = memmem(body, size, "\"stream\":true", 13) != 0 || memmem(body, size, "\"stream\": true", 14) != 0;
    if (!strcmp(name, "raw")) return say_raw(c, arg);
    if (streamed && !strcmp(name, "probe")) strcpy(name, "probe_s");
    Answer *a = answer(name, streamed ? ".sse" : ".json");
    if (!a) return not_found(c);
    c->due = 0;
    if (a->whole.size) {
        if (!arg) return say(c, a->whole.data, a->whole.size) < 0 ? -1 : 0;
        c->held = a->whole.data + a->whole.size - HELD;
        c->held_size = HELD;
        c->due = now() + arg * 1000ull;
        return say(c, a->whole.data, a->whole.size - HELD) < 0 ? -1 : advance(c);
    }
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    c->stream = a;
    c->next = 0;
    c->with_usage = memmem(body, size, "\"include_usage\":true", 20) || memmem(body, size, "\"include_usage\": true", 21);
    c->step = arg * 1000ull;
    return say(c, head, sizeof head - 1) < 0 ? -1 : advance(c);
}

static int get(Conn *c, const char *head) {
    static char models[256], version[160];
    static int model_size, version_size;
    if (!model_size) {
        const char *list = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"owned_by\":\"vllm\",\"max_model_len\":262144}]}";
        const char *said = "{\"version\":\"0.32.0\"}", *json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s";
        model_size = snprintf(models, sizeof models, json, strlen(list), list);
        version_size = snprintf(version, sizeof version, json, strlen(said), said);
    }
    if (!strncmp(head, "GET /v1/models", 14)) return say(c, models, model_size) < 0 ? -1 : 0;
    if (!strncmp(head, "GET /version", 12)) return say(c, version, version_size) < 0 ? -1 : 0;
    if (!strncmp(head, "GET /health", 11)) {
        static const char ok[] = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        return say(c, ok, sizeof ok - 1) < 0 ? -1 : 0;
    }
    return not_found(c);
}

/* Answers each request that is whole. -1: the peer is gone. */
static int serve(Conn *c) {
    while (c->in_size && !busy(c)) {
        c->in[c->in_size] = 0;
        char *stop = memmem(c->in, c->in_size, "\r\n\r\n", 4);
        if (!stop) return 0;
        size_t head = stop + 4 - c->in, whole;
        *stop = 0;
        char *length = strcasestr(c->in, "\ncontent-length:"), *chunked = strcasestr(c->in, "\ntransfer-encoding:");
        *stop = '\r';
        if (chunked) {
            if (c->in_size < head + 5 || memcmp(c->in + c->in_size - 5, "0\r\n\r\n", 5)) return 0;
            whole = c->in_size;
        } else {
            whole = head + (length ? strtoul(length + 16, 0, 10) : 0);
            if (c->in_size < whole) return 0;
        }
        int done;
        if (!strncmp(c->in, "GET ", 4)) done = get(c, c->in);
        else if (strncmp(c->in, "POST /v1/chat/completions ", 26)) done = not_found(c);
        else done = chat(c, c->in + head, whole - head);
        if (done < 0) return -1;
        memmove(c->in, c->in + whole, c->in_size - whole);
        c->in_size -= whole;
        if (!c->in_size && c->in_room > 2 * ROOM) c->in = realloc(c->in, c->in_room = 2 * ROOM);
    }
    return 0;
}

static int receive(Conn *c) {
    for (;;) {
        if (c->in_room - c->in_size < ROOM) c->in = realloc(c->in, c->in_room *= 2);
        ssize_t got = recv(c->fd, c->in + c->in_size, c->in_room - c->in_size - 1, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return -1;
        if (got < 0) return 0;
        c->in_size += got;
    }
}

static void take(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= CONNS) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Conn *c = conns[fd] = calloc(1, sizeof *c);
        c->fd = fd;
        c->in = malloc(c->in_room = 2 * ROOM);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int wait_ms(void) {
    if (!heap_size) return -1;
    unsigned long long t = now();
    return heap[0]->due <= t ? 0 : (int)((heap[0]->due - t + 999999) / 1000000);
}

int main(int argc, char **argv) {
    if (argc != 3) { fprintf(stderr, "usage: stub PORT DIR\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    folder = argv[2];
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) { perror("bind"); return 1; }
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    static struct epoll_event found[1024];
    for (;;) {
        int count = epoll_wait(poller, found, 1024, wait_ms());
        for (int i = 0; i < count; i++) {
            Conn *c = found[i].data.ptr;
            if (!c) { take(listener); continue; }
            int gone = 0;
            if (found[i].events & EPOLLOUT) gone = advance(c);
            if (gone >= 0 && found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) gone = receive(c);
            if (gone < 0 || serve(c) < 0) drop(c);
        }
        for (unsigned long long t = now(); heap_size && heap[0]->due <= t;) {
            Conn *c = heap[0];
            untime(c);
            if (advance(c) < 0 || serve(c) < 0) drop(c);
        }
    }
}
