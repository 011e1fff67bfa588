/* What the server and the load share: bytes in network order, and blocking sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OK_SIZE 10
#define HEAD_SIZE 34 /* of a message frame: size, type, time, attempts, id */
#define ID_SIZE 16

static const char OK_FRAME[OK_SIZE] = {0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'};

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void *more_room(void *block, size_t size) {
    if (!(block = realloc(block, size))) fail("no memory");
    return block;
}

static void no_delay(int fd) {
    int on = 1, buffer = 4 << 20;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
}

/* Return whether all was sent; waits while the peer does not read. */
static int send_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0) return 0;
        data += sent;
        size -= sent;
    }
    return 1;
}

static void watch(int epoll, int fd, void *owner) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = owner};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
}
