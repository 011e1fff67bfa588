/* A load that no nsqd in Python has to wait for. Prints messages per second.

     load publish PORT COUNT SIZE VERB BATCH WINDOW CALLERS
     load consume PORT COUNT CONSUMERS IN_FLIGHT

   publish: each caller has a connection and sends BATCH messages in one write, as PUBs or as one MPUB; up to
   WINDOW writes of a caller are unanswered. consume: answers each message by a FIN, those of a chunk in one
   write; IN_FLIGHT is the RDY of each consumer. */
#include "wire.h"

#define CHUNK (1024 * 1024)

struct connection {
    int fd;
    long unanswered; /* bytes of OKs */
    char in[CHUNK];
    size_t used;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static size_t receive(struct connection *from) {
    ssize_t received = recv(from->fd, from->in + from->used, CHUNK - from->used, 0);
    if (received <= 0) fail("the server hung up");
    return received;
}

/* Send a request, and read its OK. */
static void ask(struct connection *connection, const char *request, size_t size) {
    if (!send_all(connection->fd, request, size)) fail("send");
    while (connection->used < OK_SIZE) connection->used += receive(connection);
    if (memcmp(connection->in, OK_FRAME, OK_SIZE)) errno = EPROTO, fail("a request was refused");
    connection->used = 0;
}

static struct connection *open_client(int port, int epoll) {
    static const char identify[] = "  V2IDENTIFY\n\0\0\0\x1c{\"heartbeat_interval\":60000}";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct connection *opened = more_room(NULL, sizeof *opened);
    opened->fd = socket(AF_INET, SOCK_STREAM, 0);
    opened->unanswered = opened->used = 0;
    no_delay(opened->fd);
    if (connect(opened->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    ask(opened, identify, sizeof identify - 1);
    watch(epoll, opened->fd, opened);
    return opened;
}

/* Return a batch of messages, as PUBs or as one MPUB. */
static char *encode(const char *verb, int size, int batch, size_t *length) {
    char *chunk = more_room(NULL, (size_t)batch * (size + 32) + 64), *at = chunk;
    if (*verb == 'm') {
        at += sprintf(at, "MPUB bench\n");
        put32(at, 4 + batch * (4 + size));
        put32(at + 4, batch);
        at += 8;
    }
    for (int each = 0; each < batch; each++) {
        if (*verb == 'p') at += sprintf(at, "PUB bench\n");
        put32(at, size);
        memset(at + 4, 'x', size);
        at += 4 + size;
    }
    *length = at - chunk;
    return chunk;
}

static double publish(int port, long count, int size, const char *verb, int batch, int window, int callers) {
    size_t length;
    char *chunk = encode(verb, size, batch, &length);
    long answer = OK_SIZE * (*verb == 'm' ? 1 : batch), unsent = count / batch, unanswered = unsent * answer;
    struct epoll_event events[256];
    int epoll = epoll_create1(0);
    struct connection **all = more_room(NULL, callers * sizeof *all);
    for (int each = 0; each < callers; each++) all[each] = open_client(port, epoll);
    double began = now();
    for (int turn = 0; turn < window; turn++) {
        for (int each = 0; each < callers && unsent; each++, unsent--) {
            if (!send_all(all[each]->fd, chunk, length)) fail("send");
            all[each]->unanswered += answer;
        }
    }
    while (unanswered) {
        int ready = epoll_wait(epoll, events, 256, -1);
        for (int each = 0; each < ready; each++) {
            struct connection *caller = events[each].data.ptr;
            long received = receive(caller);
            if (memchr(caller->in, '_', received)) errno = EPROTO, fail("a publish was refused");
            caller->unanswered -= received;
            unanswered -= received;
            for (; unsent && caller->unanswered <= (window - 1) * answer; unsent--) {
                if (!send_all(caller->fd, chunk, length)) fail("send");
                caller->unanswered += answer;
            }
        }
    }
    return count / batch * batch / (now() - began);
}

/* Answer the messages that have come; return their number. */
static long finish(struct connection *consumer, char *answers) {
    char *at = consumer->in, *end, *to = answers;
    consumer->used += receive(consumer);
    end = at + consumer->used;
    while (end - at >= HEAD_SIZE && (size_t)(end - at) >= 4 + (size_t)get32(at)) {
        if (get32(at + 4) != 2) errno = EPROTO, fail("something other than a message arrived");
        memcpy(to, "FIN ", 4);
        memcpy(to + 4, at + 18, ID_SIZE);
        to[4 + ID_SIZE] = '\n';
        to += 5 + ID_SIZE;
        at += 4 + get32(at);
    }
    memmove(consumer->in, at, end - at);
    consumer->used = end - at;
    if (!send_all(consumer->fd, answers, to - answers)) fail("send");
    return (to - answers) / (5 + ID_SIZE);
}

static double consume(int port, long count, int consumers, int in_flight) {
    char request[64], *answers = more_room(NULL, CHUNK);
    struct epoll_event events[256];
    int epoll = epoll_create1(0);
    double began = 0;
    for (int each = 0; each < consumers; each++) {
        struct connection *consumer = open_client(port, epoll);
        ask(consumer, "SUB bench work\n", 15);
        if (!each) began = now();
        if (!send_all(consumer->fd, request, sprintf(request, "RDY %d\n", in_flight))) fail("send");
    }
    for (long left = count; left > 0;) {
        int ready = epoll_wait(epoll, events, 256, 60000);
        if (ready <= 0) errno = ETIMEDOUT, fail("messages are missing");
        for (int each = 0; each < ready; each++) left -= finish(events[each].data.ptr, answers);
    }
    return count / (now() - began);
}

int main(int count, char **words) {
    if (count == 9 && !strcmp(words[1], "publish")) {
        int port = atoi(words[2]), size = atoi(words[4]), batch = atoi(words[6]);
        printf("%f\n", publish(port, atol(words[3]), size, words[5], batch, atoi(words[7]), atoi(words[8])));
    } else if (count == 6 && !strcmp(words[1], "consume")) {
        printf("%f\n", consume(atoi(words[2]), atol(words[3]), atoi(words[4]), atoi(words[5])));
    } else {
        return fprintf(stderr, "see the head of load.c\n"), 2;
    }
    return 0;
}
