/*
 * The recorder of the power-loss test: an LD_PRELOAD library that writes every call which changes
 * a file or a name below one directory into a trace. It owns what is recorded and in which order;
 * what a power cut leaves of it is decided by the replay (src/powerloss/).
 *
 *   GUANXI_RECORD_ROOT   the directory to record; without it every call just passes through
 *   GUANXI_RECORD_TRACE  the trace, opened with O_APPEND; a record is one write()
 *   GUANXI_RECORD_STOP   once this path exists, the process kills itself before its next recorded
 *                        call: a kill -9 that never falls between a call and its record
 *
 * One mutex is held across a call and its record, so the trace has the order of the calls. Only
 * fsync and fdatasync run outside it, between a begin and an end record: what was written before
 * the begin is durable at the end, and nothing else is.
 *
 * Files are named by device and inode, looked up from the descriptor at each call. So dup, fcntl
 * and close need no record: there is no table of descriptors that could go stale.
 *
 * Only calls through libc are seen. The binary under test must be built with
 * RUSTFLAGS="--cfg rustix_use_libc", or the renames of tempfile go past as raw system calls. A call
 * that the replay cannot model aborts the process and says which; so a trace is whole or absent.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The same numbers stand in src/powerloss/trace.rs. */
enum record_kind {
    RECORD_CREATE = 2,
    RECORD_MAKE_DIRECTORY = 3,
    RECORD_LINK = 4,
    RECORD_REMOVE = 5,
    RECORD_REMOVE_DIRECTORY = 6,
    RECORD_RENAME = 7,
    RECORD_WRITE = 8,
    RECORD_TRUNCATE = 9,
    RECORD_ALLOCATE = 10,
    RECORD_SYNC_BEGIN = 11,
    RECORD_SYNC_END = 12,
};

struct identity {
    uint64_t device;
    uint64_t inode;
};

struct header {
    uint32_t length; /* of what follows this field */
    uint32_t kind;
    struct identity subject;
    struct identity object;
    uint64_t first;
    uint64_t second;
};

/* Where a path points: its directory and the last component of its name. */
struct place {
    bool recorded;
    int directory_fd;
    struct identity directory;
    char name[NAME_MAX + 1];
};

static const struct identity NONE = {0, 0};
static const int AT_FILE_POSITION = -1;

static long (*system_call)(long, ...);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length; /* 0: nothing is recorded */
static const char *stop_path;
static int trace_fd = -1;
static char *buffer;
static size_t buffer_bytes;
static uint64_t syncs_begun;

static void say(const char *text)
{
    system_call(SYS_write, STDERR_FILENO, text, strlen(text));
}

__attribute__((noreturn)) static void refuse(const char *what)
{
    say("guanxi recorder: ");
    say(what);
    say(": the power-loss test does not model it\n");
    abort();
}

__attribute__((noreturn)) static void fail(const char *what)
{
    say("guanxi recorder: ");
    say(what);
    say(": ");
    say(strerror(errno));
    say("\n");
    abort();
}

/* Runs in the constructor, or earlier when another library's constructor makes a call. */
static void start(void)
{
    if (system_call)
        return;
    system_call = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    const char *wanted_root = getenv("GUANXI_RECORD_ROOT");
    const char *trace = getenv("GUANXI_RECORD_TRACE");
    if (!wanted_root || !trace)
        return;
    if (!realpath(wanted_root, root))
        fail("cannot resolve GUANXI_RECORD_ROOT");
    trace_fd = system_call(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace_fd < 0)
        fail("cannot open GUANXI_RECORD_TRACE");
    stop_path = getenv("GUANXI_RECORD_STOP");
    root_length = strlen(root);
}

__attribute__((constructor)) static void start_early(void)
{
    start();
}

static void lock(void)
{
    pthread_mutex_lock(&mutex);
    if (stop_path && system_call(SYS_faccessat, AT_FDCWD, stop_path, F_OK) == 0)
        system_call(SYS_kill, getpid(), SIGKILL);
}

/* Gives back the mutex and the errno of the call that was recorded. */
static void unlock(int call_errno)
{
    pthread_mutex_unlock(&mutex);
    errno = call_errno;
}

static bool below_root(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static struct identity identity_of(const struct stat *status)
{
    return (struct identity){status->st_dev, status->st_ino};
}

/* True for a regular file or a directory below the root; errno stays as it was. */
static bool recorded(int fd, struct identity *identity)
{
    start();
    struct stat status;
    int before = errno;
    bool found = root_length && fd >= 0 && fstat(fd, &status) == 0
        && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) && below_root(fd);
    if (found && identity)
        *identity = identity_of(&status);
    errno = before;
    return found;
}

static void find_place(int at, const char *path, struct place *place)
{
    start();
    place->recorded = false;
    place->directory_fd = -1;
    size_t length = root_length && path ? strlen(path) : 0;
    if (length == 0 || length >= PATH_MAX)
        return;
    char parent[PATH_MAX];
    memcpy(parent, path, length + 1);
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = 0;
    char *slash = strrchr(parent, '/');
    const char *name = slash ? slash + 1 : parent;
    if (*name == 0 || strlen(name) > NAME_MAX)
        return;
    strcpy(place->name, name);
    if (!slash)
        strcpy(parent, ".");
    else if (slash == parent)
        parent[1] = 0;
    else
        *slash = 0;
    int fd = system_call(SYS_openat, at, parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat status;
    if (fd < 0)
        return;
    place->directory_fd = fd;
    if (fstat(fd, &status) == 0 && below_root(fd)) {
        place->directory = identity_of(&status);
        place->recorded = true;
    }
}

static void leave_place(struct place *place)
{
    if (place->directory_fd >= 0)
        system_call(SYS_close, place->directory_fd);
}

static bool status_at(const struct place *place, struct stat *status)
{
    return fstatat(place->directory_fd, place->name, status, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Writes one record whose payload already stands in the buffer behind the header's place. */
static void append(enum record_kind kind, struct identity subject, struct identity object, uint64_t first,
                   uint64_t second, size_t payload_bytes)
{
    size_t total = sizeof(struct header) + payload_bytes;
    struct header header = {total - sizeof header.length, kind, subject, object, first, second};
    memcpy(buffer, &header, sizeof header);
    if (system_call(SYS_write, trace_fd, buffer, total) != (ssize_t)total)
        fail("cannot write the trace");
}

static char *payload(size_t bytes)
{
    size_t wanted = sizeof(struct header) + bytes;
    if (wanted > UINT32_MAX)
        refuse("a write of 4 GiB");
    if (wanted > buffer_bytes) {
        buffer = realloc(buffer, wanted);
        if (!buffer)
            fail("no memory for a record");
        buffer_bytes = wanted;
    }
    return buffer + sizeof(struct header);
}

static void append_plain(enum record_kind kind, struct identity subject, uint64_t first, uint64_t second)
{
    payload(0);
    append(kind, subject, NONE, first, second, 0);
}

static void append_name(enum record_kind kind, const struct place *place, struct identity object)
{
    size_t length = strlen(place->name);
    memcpy(payload(length), place->name, length);
    append(kind, place->directory, object, 0, 0, length);
}

/* Records a write that has happened. A payload of zeros alone is left out: only its length counts. */
static void append_write(int fd, struct identity file, const struct iovec *parts, ssize_t written, off_t offset)
{
    struct stat status;
    if (offset == AT_FILE_POSITION) {
        offset = lseek(fd, 0, SEEK_CUR) - written;
    } else if (system_call(SYS_fcntl, fd, F_GETFL) & O_APPEND) {
        /* Linux appends whatever offset pwrite is given. */
        if (fstat(fd, &status) != 0)
            fail("cannot stat a written file");
        offset = status.st_size - written;
    }
    char *bytes = payload(written);
    for (size_t copied = 0; copied < (size_t)written; parts++) {
        size_t left = written - copied;
        size_t part = parts->iov_len < left ? parts->iov_len : left;
        memcpy(bytes + copied, parts->iov_base, part);
        copied += part;
    }
    bool zeros = bytes[0] == 0 && memcmp(bytes, bytes + 1, written - 1) == 0;
    append(RECORD_WRITE, file, NONE, offset, written, zeros ? 0 : written);
}

/* ---- opening ---- */

static int open_at(int at, const char *path, int flags, mode_t mode)
{
    start();
    bool temporary = (flags & O_TMPFILE) == O_TMPFILE;
    if (!root_length || !(temporary || flags & (O_CREAT | O_TRUNC | O_DSYNC)))
        return system_call(SYS_openat, at, path, flags, mode);
    struct place place;
    struct stat status;
    lock();
    find_place(at, path, &place);
    bool existed = place.recorded && status_at(&place, &status);
    if (existed && S_ISLNK(status.st_mode))
        refuse("a symbolic link");
    int fd = system_call(SYS_openat, at, path, flags, mode);
    int call_errno = errno;
    if ((temporary || flags & O_DSYNC) && recorded(fd, NULL))
        refuse(temporary ? "open with O_TMPFILE" : "open with O_SYNC or O_DSYNC");
    if (fd >= 0 && place.recorded && fstat(fd, &status) == 0) {
        if (!existed)
            append_name(RECORD_CREATE, &place, identity_of(&status));
        else if (flags & O_TRUNC && S_ISREG(status.st_mode))
            append_plain(RECORD_TRUNCATE, identity_of(&status), 0, 0);
    }
    leave_place(&place);
    unlock(call_errno);
    return fd;
}

#define MODE_OF(flags, last)                                                                                     \
    mode_t mode = 0;                                                                                             \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {                                               \
        va_list arguments;                                                                                       \
        va_start(arguments, last);                                                                               \
        mode = va_arg(arguments, int);                                                                           \
        va_end(arguments);                                                                                       \
    }

int open(const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return open_at(at, path, flags, mode);
}

int creat(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int __open_2(const char *path, int flags)
{
    return open_at(AT_FDCWD, path, flags, 0);
}

int __openat_2(int at, const char *path, int flags)
{
    return open_at(at, path, flags, 0);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int at, const char *path, int flags, ...) __attribute__((alias("openat")));
int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));
int __open64_2(const char *path, int flags) __attribute__((alias("__open_2")));
int __openat64_2(int at, const char *path, int flags) __attribute__((alias("__openat_2")));

/* stdio writes from inside libc, where no preload sees it. */
static void refuse_stdio(const char *path, const char *mode)
{
    struct place place;
    find_place(AT_FDCWD, path, &place);
    leave_place(&place);
    if (place.recorded && strpbrk(mode, "wa+"))
        refuse("fopen for writing");
}

FILE *fopen(const char *path, const char *mode)
{
    refuse_stdio(path, mode);
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    return next(path, mode);
}

FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

/* ---- writing ---- */

ssize_t write(int fd, const void *bytes, size_t count)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_write, fd, bytes, count);
    lock();
    ssize_t written = system_call(SYS_write, fd, bytes, count);
    int call_errno = errno;
    if (written > 0)
        append_write(fd, file, &(struct iovec){(void *)bytes, count}, written, AT_FILE_POSITION);
    unlock(call_errno);
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_pwrite64, fd, bytes, count, offset);
    lock();
    ssize_t written = system_call(SYS_pwrite64, fd, bytes, count, offset);
    int call_errno = errno;
    if (written > 0)
        append_write(fd, file, &(struct iovec){(void *)bytes, count}, written, offset);
    unlock(call_errno);
    return written;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_writev, fd, parts, count);
    lock();
    ssize_t written = system_call(SYS_writev, fd, parts, count);
    int call_errno = errno;
    if (written > 0)
        append_write(fd, file, parts, written, AT_FILE_POSITION);
    unlock(call_errno);
    return written;
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_pwritev2, fd, parts, count, offset, 0L, flags);
    if (flags & ~RWF_HIPRI)
        refuse("pwritev2 with flags");
    lock();
    ssize_t written = system_call(SYS_pwritev2, fd, parts, count, offset, 0L, flags);
    int call_errno = errno;
    if (written > 0)
        append_write(fd, file, parts, written, offset);
    unlock(call_errno);
    return written;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_pwritev, fd, parts, count, offset, 0L);
    lock();
    ssize_t written = system_call(SYS_pwritev, fd, parts, count, offset, 0L);
    int call_errno = errno;
    if (written > 0)
        append_write(fd, file, parts, written, offset);
    unlock(call_errno);
    return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
    __attribute__((alias("pwritev2")));

/* ---- sizes ---- */

int ftruncate(int fd, off_t length)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_ftruncate, fd, length);
    lock();
    int result = system_call(SYS_ftruncate, fd, length);
    int call_errno = errno;
    if (result == 0)
        append_plain(RECORD_TRUNCATE, file, length, 0);
    unlock(call_errno);
    return result;
}

int truncate(const char *path, off_t length)
{
    start();
    struct identity file;
    int fd = root_length ? system_call(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC) : -1;
    bool known = fd >= 0 && recorded(fd, &file);
    if (fd >= 0)
        system_call(SYS_close, fd);
    lock();
    int result = system_call(SYS_truncate, path, length);
    int call_errno = errno;
    if (known && result == 0)
        append_plain(RECORD_TRUNCATE, file, length, 0);
    unlock(call_errno);
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(SYS_fallocate, fd, mode, offset, length);
    if (mode & ~FALLOC_FL_KEEP_SIZE)
        refuse("fallocate that changes bytes");
    lock();
    int result = system_call(SYS_fallocate, fd, mode, offset, length);
    int call_errno = errno;
    if (result == 0 && mode == 0)
        append_plain(RECORD_ALLOCATE, file, offset, length);
    unlock(call_errno);
    return result;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    int before = errno;
    int result = fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
    errno = before;
    return result;
}

int truncate64(const char *path, off64_t length) __attribute__((alias("truncate")));
int ftruncate64(int fd, off64_t length) __attribute__((alias("ftruncate")));
int fallocate64(int fd, int mode, off64_t offset, off64_t length) __attribute__((alias("fallocate")));
int posix_fallocate64(int fd, off64_t offset, off64_t length) __attribute__((alias("posix_fallocate")));

/* ---- making durable ---- */

static int sync_file(long number, int fd)
{
    struct identity file;
    if (!recorded(fd, &file))
        return system_call(number, fd);
    uint64_t data_only = number == SYS_fdatasync;
    lock();
    uint64_t ticket = (uint64_t)getpid() << 32 | ++syncs_begun;
    append_plain(RECORD_SYNC_BEGIN, file, ticket, data_only);
    unlock(0);
    int result = system_call(number, fd);
    int call_errno = errno;
    lock();
    append_plain(RECORD_SYNC_END, file, ticket, result == 0 ? 0 : call_errno);
    unlock(call_errno);
    return result;
}

int fsync(int fd)
{
    return sync_file(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_file(SYS_fdatasync, fd);
}

/* ---- names ---- */

int mkdirat(int at, const char *path, mode_t mode)
{
    struct place place;
    struct stat status;
    start();
    lock();
    find_place(at, path, &place);
    int result = system_call(SYS_mkdirat, at, path, mode);
    int call_errno = errno;
    if (result == 0 && place.recorded && status_at(&place, &status))
        append_name(RECORD_MAKE_DIRECTORY, &place, identity_of(&status));
    leave_place(&place);
    unlock(call_errno);
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int at, const char *path, int flags)
{
    struct place place;
    start();
    lock();
    find_place(at, path, &place);
    int result = system_call(SYS_unlinkat, at, path, flags);
    int call_errno = errno;
    if (result == 0 && place.recorded)
        append_name(flags & AT_REMOVEDIR ? RECORD_REMOVE_DIRECTORY : RECORD_REMOVE, &place, NONE);
    leave_place(&place);
    unlock(call_errno);
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path)
{
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int renameat2(int from_at, const char *from_path, int to_at, const char *to_path, unsigned int flags)
{
    struct place from, to;
    start();
    lock();
    find_place(from_at, from_path, &from);
    find_place(to_at, to_path, &to);
    bool known = from.recorded && to.recorded;
    if (from.recorded != to.recorded)
        refuse("a rename into or out of the recorded directory");
    if (known && flags & ~RENAME_NOREPLACE)
        refuse("renameat2 with RENAME_EXCHANGE or RENAME_WHITEOUT");
    int result = system_call(SYS_renameat2, from_at, from_path, to_at, to_path, flags);
    int call_errno = errno;
    if (result == 0 && known) {
        size_t from_bytes = strlen(from.name) + 1, to_bytes = strlen(to.name);
        char *names = payload(from_bytes + to_bytes);
        memcpy(names, from.name, from_bytes);
        memcpy(names + from_bytes, to.name, to_bytes);
        append(RECORD_RENAME, from.directory, to.directory, 0, 0, from_bytes + to_bytes);
    }
    leave_place(&from);
    leave_place(&to);
    unlock(call_errno);
    return result;
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return renameat2(from_at, from, to_at, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    struct place place;
    struct identity file = NONE;
    start();
    lock();
    find_place(to_at, to, &place);
    if (place.recorded && flags)
        refuse("linkat with flags");
    if (place.recorded) {
        int fd = system_call(SYS_openat, from_at, from, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && !recorded(fd, &file))
            refuse("a link to a file outside the recorded directory");
        if (fd >= 0)
            system_call(SYS_close, fd);
    }
    int result = system_call(SYS_linkat, from_at, from, to_at, to, flags);
    int call_errno = errno;
    if (result == 0 && place.recorded)
        append_name(RECORD_LINK, &place, file);
    leave_place(&place);
    unlock(call_errno);
    return result;
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- what is not modelled ---- */

int symlinkat(const char *target, int at, const char *path)
{
    struct place place;
    find_place(at, path, &place);
    leave_place(&place);
    if (place.recorded)
        refuse("symlink");
    return system_call(SYS_symlinkat, target, at, path);
}

int symlink(const char *target, const char *path)
{
    return symlinkat(target, AT_FDCWD, path);
}

int sync_file_range(int fd, off64_t offset, off64_t count, unsigned int flags)
{
    if (recorded(fd, NULL))
        refuse("sync_file_range");
    return system_call(SYS_sync_file_range, fd, offset, count, flags);
}

int syncfs(int fd)
{
    if (recorded(fd, NULL))
        refuse("syncfs");
    return system_call(SYS_syncfs, fd);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t count, unsigned int flags)
{
    if (recorded(to, NULL))
        refuse("copy_file_range");
    return system_call(SYS_copy_file_range, from, from_offset, to, to_offset, count, flags);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t count)
{
    if (recorded(to, NULL))
        refuse("sendfile");
    return system_call(SYS_sendfile, to, from, offset, count);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) __attribute__((alias("sendfile")));

ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t count, unsigned int flags)
{
    if (recorded(to, NULL))
        refuse("splice");
    return system_call(SYS_splice, from, from_offset, to, to_offset, count, flags);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    start();
    bool shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (shared && !(flags & MAP_ANONYMOUS) && protection & PROT_WRITE && recorded(fd, NULL))
        refuse("a shared writable mmap");
    return (void *)system_call(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
    __attribute__((alias("mmap")));

/* ---- the same calls, made by number ---- */

long syscall(long number, ...)
{
    start();
    va_list arguments;
    va_start(arguments, number);
    long a = va_arg(arguments, long), b = va_arg(arguments, long), c = va_arg(arguments, long);
    long d = va_arg(arguments, long), e = va_arg(arguments, long), f = va_arg(arguments, long);
    va_end(arguments);
    switch (number) {
    case SYS_io_uring_setup:
        if (root_length)
            refuse("io_uring_setup");
        break;
    case SYS_openat:
        return open_at(a, (const char *)b, c, d);
    case SYS_openat2:
        if (root_length)
            refuse("openat2");
        break;
    case SYS_write:
        return write(a, (const void *)b, c);
    case SYS_pwrite64:
        return pwrite(a, (const void *)b, c, d);
    case SYS_writev:
        return writev(a, (const struct iovec *)b, c);
    case SYS_pwritev:
        return pwritev(a, (const struct iovec *)b, c, d);
    case SYS_pwritev2:
        return pwritev2(a, (const struct iovec *)b, c, d, f);
    case SYS_fsync:
        return fsync(a);
    case SYS_fdatasync:
        return fdatasync(a);
    case SYS_truncate:
        return truncate((const char *)a, b);
    case SYS_ftruncate:
        return ftruncate(a, b);
    case SYS_fallocate:
        return fallocate(a, b, c, d);
    case SYS_mkdirat:
        return mkdirat(a, (const char *)b, c);
    case SYS_unlinkat:
        return unlinkat(a, (const char *)b, c);
    case SYS_renameat:
        return renameat(a, (const char *)b, c, (const char *)d);
    case SYS_renameat2:
        return renameat2(a, (const char *)b, c, (const char *)d, e);
    case SYS_linkat:
        return linkat(a, (const char *)b, c, (const char *)d, e);
    case SYS_symlinkat:
        return symlinkat((const char *)a, b, (const char *)c);
    case SYS_sync_file_range:
        return sync_file_range(a, b, c, d);
    case SYS_syncfs:
        return syncfs(a);
    case SYS_copy_file_range:
        return copy_file_range(a, (off64_t *)b, c, (off64_t *)d, e, f);
    case SYS_sendfile:
        return sendfile(a, b, (off_t *)c, d);
    case SYS_splice:
        return splice(a, (off64_t *)b, c, (off64_t *)d, e, f);
    case SYS_mmap:
        return (long)mmap((void *)a, b, c, d, e, f);
#ifdef SYS_open
    case SYS_open:
        return open_at(AT_FDCWD, (const char *)a, b, c);
    case SYS_creat:
        return creat((const char *)a, b);
    case SYS_mkdir:
        return mkdir((const char *)a, b);
    case SYS_unlink:
        return unlink((const char *)a);
    case SYS_rmdir:
        return rmdir((const char *)a);
    case SYS_rename:
        return rename((const char *)a, (const char *)b);
    case SYS_link:
        return link((const char *)a, (const char *)b);
    case SYS_symlink:
        return symlink((const char *)a, (const char *)b);
#endif
    }
    return system_call(number, a, b, c, d, e, f);
}
