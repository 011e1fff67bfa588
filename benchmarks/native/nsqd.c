/* A minimal nsqd that a client in Python never waits for: nsqd PORT

   One thread, one queue in memory for all topics and channels: IDENTIFY, PUB, MPUB, SUB, RDY and FIN. It
   trusts its clients, answers IDENTIFY with OK, sends no heartbeats, and never delivers a message again. */
#include "wire.h"

#define CHUNK (256 * 1024)

struct client {
    int fd, greeted, subscribed;
    long rdy, in_flight;
    char *in; /* received, and not executed */
    size_t used, room;
    struct client *next; /* of the subscribers */
};

static struct {
    char *frames; /* message frames, as they are sent */
    size_t first, end, room;
    uint64_t last_id;
} queue;

static struct client *subscribers;

static void put(const char *body, uint32_t size, int64_t now) {
    static const char digits[] = "0123456789abcdef";
    size_t frame_size = HEAD_SIZE + size;
    if (queue.first == queue.end) queue.first = queue.end = 0;
    if (queue.end + frame_size > queue.room) {
        queue.room = 2 * queue.room + frame_size + CHUNK;
        queue.frames = more_room(queue.frames, queue.room);
    }
    char *frame = queue.frames + queue.end;
    uint64_t id = ++queue.last_id;
    put32(frame, size + HEAD_SIZE - 4);
    put32(frame + 4, 2);
    put32(frame + 8, now >> 32);
    put32(frame + 12, now);
    frame[16] = 0, frame[17] = 1;
    for (int place = ID_SIZE - 1; place >= 0; place--, id >>= 4) frame[18 + place] = digits[id & 15];
    memcpy(frame + HEAD_SIZE, body, size);
    queue.end += frame_size;
}

/* Send what the client's RDY allows, one chunk at most; return whether it was anything. */
static int serve(struct client *client) {
    size_t end = queue.first;
    while (end < queue.end && client->in_flight < client->rdy && end - queue.first < CHUNK) {
        end += 4 + get32(queue.frames + end);
        client->in_flight++;
    }
    size_t size = end - queue.first;
    if (!size) return 0;
    queue.first = end;
    send_all(client->fd, queue.frames + end - size, size); /* a dead client is noticed when it is read */
    return 1;
}

static void deliver(void) {
    int served = 1;
    while (served) {
        served = 0;
        for (struct client *each = subscribers; each; each = each->next) served |= serve(each);
    }
}

/* Execute the complete commands; return where they end, and count the OKs that they get. */
static char *execute(struct client *client, int64_t now, int *oks) {
    char *at = client->in, *end = at + client->used, *newline;
    if (!client->greeted && client->used >= 4) client->greeted = 1, at += 4; /* "  V2" */
    while ((newline = memchr(at, '\n', end - at))) {
        char *next = newline + 1, *body = next + 4;
        if (!memcmp(at, "FIN ", 4)) {
            client->in_flight--;
        } else if (!memcmp(at, "RDY ", 4)) {
            client->rdy = atol(at + 4);
        } else if (!memcmp(at, "SUB ", 4)) {
            client->subscribed = 1;
            client->next = subscribers;
            subscribers = client;
            ++*oks;
        } else if (!memcmp(at, "PUB ", 4) || !memcmp(at, "MPUB", 4) || !memcmp(at, "IDEN", 4)) {
            if (end < body || (size_t)(end - body) < get32(next)) break;
            next = body + get32(next);
            if (*at == 'P') put(body, next - body, now);
            if (*at == 'M') {
                for (body += 4; body < next; body += 4 + get32(body)) put(body + 4, get32(body), now);
            }
            ++*oks;
        }
        at = next;
    }
    return at;
}

/* Return whether the client is still there. */
static int receive(struct client *client) {
    if (client->room - client->used < CHUNK) {
        client->room = 2 * client->used + CHUNK;
        client->in = more_room(client->in, client->room);
    }
    ssize_t received = recv(client->fd, client->in + client->used, client->room - client->used, 0);
    if (received <= 0) return 0;
    client->used += received;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int oks = 0;
    char *rest = execute(client, now.tv_sec * 1000000000LL + now.tv_nsec, &oks);
    client->used -= rest - client->in;
    memmove(client->in, rest, client->used);
    for (; oks; oks -= oks < 256 ? oks : 256) {
        char answers[256 * OK_SIZE];
        int some = oks < 256 ? oks : 256;
        for (int each = 0; each < some; each++) memcpy(answers + each * OK_SIZE, OK_FRAME, OK_SIZE);
        if (!send_all(client->fd, answers, some * OK_SIZE)) return 0;
    }
    return 1;
}

static void drop(struct client *client) {
    struct client **place = &subscribers;
    while (client->subscribed && *place != client) place = &(*place)->next;
    if (client->subscribed) *place = client->next;
    close(client->fd);
    free(client->in);
    free(client);
}

int main(int count, char **words) {
    if (count != 2) return fprintf(stderr, "usage: nsqd PORT\n"), 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128)) fail("listen");
    watch(epoll, listener, NULL);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int each = 0; each < ready; each++) {
            struct client *client = events[each].data.ptr;
            if (!client) {
                int fd = accept(listener, NULL, NULL);
                if (fd < 0) continue;
                no_delay(fd);
                client = more_room(NULL, sizeof *client);
                *client = (struct client){.fd = fd};
                watch(epoll, fd, client);
            } else if (!receive(client)) {
                drop(client);
            }
        }
        deliver();
    }
}
