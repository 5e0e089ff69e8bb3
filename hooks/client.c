/* One hook call: carry what the agent says to wal-agent, print what it answers. See wal_agent/agents/hook_line.py.

       client SOCKET RUN AGENT EVENT AGENT_PID SECONDS
       client wal-agent-hook/1          ends with 0 if it runs here and speaks that wire

   Any failure, and no answer within SECONDS, ends this with a code other than 0 and nothing complete on stdout; the
   agent's own hook line turns that into a refusal (I5). It asks no variable of the environment, allocates nothing and
   says nothing on stderr. hooks/client.py does the same where no C compiler was; the tests run both. */

#define _GNU_SOURCE /* struct ucred; the BSDs need no word to show getpeereid */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#define WIRE "wal-agent-hook/1"
#define HEAD 5                /* of a frame: its kind and the length of its body */
#define CHUNK ((size_t)65536) /* what a pipe holds; the first one also bounds the hello */
#define MAX_FRAME ((size_t)1 << 20)

enum failure { USAGE = 2, NO_ANSWER = 3, NOT_OURS = 4, BROKEN = 5 };

static unsigned char buffer[MAX_FRAME]; /* frames on their way out, then the answer */

static void fail(enum failure code) { _exit(code); }

static void send_all(int fd, const unsigned char *from, size_t size, enum failure code) {
    while (size > 0) {
        ssize_t done = write(fd, from, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            fail(code);
        from += done;
        size -= (size_t)done;
    }
}

static void receive(int fd, unsigned char *to, size_t size) {
    while (size > 0) {
        ssize_t got = read(fd, to, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            fail(NO_ANSWER);
        to += got;
        size -= (size_t)got;
    }
}

/* Writes the head of a frame whose body follows it; gives the size of both. */
static size_t frame(unsigned char *at, char kind, size_t body) {
    at[0] = (unsigned char)kind;
    for (int i = 0; i < 4; i++)
        at[1 + i] = (unsigned char)(body >> (24 - 8 * i));
    return HEAD + body;
}

/* The alarm ends this process, whatever it is doing: also where it was started with the signal ignored or blocked. */
static void set_deadline(const char *seconds) {
    char *end;
    long limit = strtol(seconds, &end, 10);
    sigset_t set;
    if (*seconds < '0' || *seconds > '9' || *end != '\0' || limit < 1 || limit > 86400)
        fail(USAGE);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    if (signal(SIGALRM, SIG_DFL) == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, NULL) != 0)
        fail(BROKEN);
    alarm((unsigned)limit);
}

/* Whoever owns the folder when the run is gone could listen there, so the path alone proves nothing. */
static int peer_is_us(int fd) {
#ifdef __linux__
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && size == sizeof peer && peer.uid == geteuid();
#else
    uid_t uid;
    gid_t gid;
    return getpeereid(fd, &uid, &gid) == 0 && uid == geteuid();
#endif
}

static int connected(const char *path) {
    struct sockaddr_un address;
    size_t length = strlen(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd <= 1) /* stdin or stdout is closed: the socket must not take its place */
        fail(BROKEN);
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof address.sun_path)
        fail(USAGE);
    memcpy(address.sun_path, path, length);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail(NO_ANSWER);
    if (!peer_is_us(fd))
        fail(NOT_OURS);
    return fd;
}

/* Hello, stdin, end; what is small goes out in one write, which wakes the server once. */
static void ask(int fd, char **argv) {
    size_t used;
    int hello = snprintf((char *)buffer + HEAD, CHUNK - HEAD, WIRE "%c%s%c%s%c%s%c%ld%c%s", 0, argv[2], 0, argv[3], 0,
                         argv[4], 0, (long)getpid(), 0, argv[5]);
    if (hello < 0 || (size_t)hello >= CHUNK - HEAD)
        fail(USAGE);
    used = frame(buffer, 'H', (size_t)hello);
    for (;;) {
        ssize_t got = read(0, buffer + used + HEAD, CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(BROKEN);
        if (got == 0)
            break;
        used += frame(buffer + used, 'D', (size_t)got);
        if (used >= CHUNK) {
            send_all(fd, buffer, used, NO_ANSWER);
            used = 0;
        }
    }
    used += frame(buffer + used, 'E', 0);
    send_all(fd, buffer, used, NO_ANSWER);
}

/* The whole answer into `buffer`; gives its size. */
static size_t answer(int fd) {
    unsigned char head[HEAD];
    size_t size;
    receive(fd, head, sizeof head);
    size = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | (size_t)head[4];
    if (head[0] != 'A' || size > MAX_FRAME)
        fail(NOT_OURS);
    receive(fd, buffer, size);
    return size;
}

int main(int argc, char **argv) {
    unsigned char told[HEAD];
    size_t size;
    int fd;
    if (argc == 2)
        _exit(strcmp(argv[1], WIRE) == 0 ? 0 : USAGE);
    if (argc != 7)
        fail(USAGE);
    set_deadline(argv[6]);
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        fail(BROKEN);
    fd = connected(argv[1]);
    ask(fd, argv);
    size = answer(fd);
    send_all(1, buffer, size, BROKEN);
    send_all(fd, told, frame(told, 'T', 0), NO_ANSWER);
    _exit(0);
}
