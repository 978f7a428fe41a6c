/*
 * Known sequences of file calls, to test the power-loss tools with: writer ROOT SCENARIO.
 * ROOT is absolute and empty. Every sequence that is not right says in its name what it leaves out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CONTENT_BYTES = 1500 };

static const char *root;

#define CHECK(call)                                                                                              \
    do {                                                                                                         \
        if ((call) < 0) {                                                                                        \
            perror(#call);                                                                                       \
            exit(1);                                                                                             \
        }                                                                                                        \
    } while (0)

static const char *at_root(const char *name)
{
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void sync_directory(const char *name)
{
    int fd = open(at_root(name), O_RDONLY | O_DIRECTORY);
    CHECK(fd);
    CHECK(fsync(fd));
    close(fd);
}

static void write_file(const char *name, char letter, int synced)
{
    char content[CONTENT_BYTES];
    memset(content, letter, sizeof content);
    int fd = open(at_root(name), O_WRONLY | O_CREAT | O_EXCL, 0644);
    CHECK(fd);
    CHECK(write(fd, content, sizeof content));
    if (synced)
        CHECK(fsync(fd));
    close(fd);
}

static void replace(int file_synced, int directory_synced)
{
    write_file("a", 'o', 1);
    sync_directory("");
    write_file("a.new", 'n', file_synced);
    CHECK(rename(at_root("a.new"), at_root("a")));
    if (directory_synced)
        sync_directory("");
}

static void nested(int root_synced)
{
    CHECK(mkdir(at_root("d"), 0755));
    write_file("d/f", 'n', 1);
    sync_directory("d");
    if (root_synced)
        sync_directory("");
}

/* Every call that is recorded, each at least once; O_CREAT always creates, O_TRUNC alone never. */
static void all_calls(void)
{
    struct iovec parts[2] = {{"left", 4}, {"right", 5}};
    int directory = open(root, O_RDONLY | O_DIRECTORY);
    CHECK(directory);
    int fd = open(at_root("one"), O_RDWR | O_CREAT, 0644);
    CHECK(fd);
    CHECK(write(fd, "abc", 3));
    CHECK(pwrite(fd, "xyz", 3, 5000));
    CHECK(pwrite64(fd, "\0\0\0\0", 4, 9000));
    CHECK(writev(fd, parts, 2));
    CHECK(pwritev(fd, parts, 2, 600));
    CHECK(pwritev2(fd, parts, 2, 700, 0));
    CHECK(fdatasync(fd));
    int copy = dup(fd);
    CHECK(write(copy, "dup", 3));
    close(copy);
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(write(copy, "fcntl", 5));
    CHECK(fsync(copy));
    close(copy);
    CHECK(ftruncate(fd, 8192));
    CHECK(truncate(at_root("one"), 7000));
    CHECK(fallocate(fd, 0, 0, 20000));
    CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 40000));
    if (posix_fallocate(fd, 0, 30000) != 0)
        exit(1);
    close(fd);

    fd = openat(directory, "two", O_WRONLY | O_CREAT | O_APPEND, 0644);
    CHECK(fd);
    CHECK(write(fd, "first", 5));
    CHECK(pwrite(fd, "appended wherever", 17, 0));
    CHECK(fsync(fd));
    CHECK(unlink(at_root("two")));
    CHECK(write(fd, "to a file without a name", 24));
    close(fd);
    /* Its inode may be that of the file just removed. */
    fd = creat(at_root("three"), 0644);
    CHECK(fd);
    CHECK(write(fd, "three", 5));
    close(fd);
    fd = open64(at_root("three"), O_WRONLY | O_TRUNC);
    CHECK(fd);
    CHECK(write(fd, "3", 1));
    close(fd);

    CHECK(mkdir(at_root("sub"), 0755));
    CHECK(mkdirat(directory, "sub/deep", 0755));
    CHECK(rename(at_root("three"), at_root("sub/four")));
    CHECK(renameat(directory, "sub/four", directory, "five"));
    CHECK(syscall(SYS_renameat2, directory, "five", directory, "six", RENAME_NOREPLACE));
    CHECK(link(at_root("six"), at_root("seven")));
    CHECK(linkat(directory, "six", directory, "sub/eight", 0));
    CHECK(unlinkat(directory, "six", 0));
    CHECK(rename(at_root("sub/deep"), at_root("deep")));
    CHECK(rmdir(at_root("deep")));
    CHECK(mkdir(at_root("gone"), 0755));
    CHECK(unlinkat(directory, "gone", AT_REMOVEDIR));
    CHECK(fsync(directory));
    close(directory);
}

static void refused(const char *call)
{
    write_file("a", 'o', 1);
    int fd = open(at_root("a"), O_RDWR);
    int other = open("/proc/self/exe", O_RDONLY);
    if (strcmp(call, "sync_file_range") == 0)
        sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    else if (strcmp(call, "mmap") == 0)
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    else if (strcmp(call, "copy_file_range") == 0)
        copy_file_range(other, NULL, fd, NULL, 16, 0);
    else if (strcmp(call, "sendfile") == 0)
        sendfile(fd, other, NULL, 16);
    else if (strcmp(call, "io_uring_setup") == 0)
        syscall(SYS_io_uring_setup, 1, NULL);
    else if (strcmp(call, "O_DSYNC") == 0)
        open(at_root("a"), O_WRONLY | O_DSYNC);
    else if (strcmp(call, "O_TMPFILE") == 0)
        open(root, O_WRONLY | O_TMPFILE, 0644);
    else if (strcmp(call, "symlink") == 0)
        CHECK(symlink("a", at_root("b")));
    else if (strcmp(call, "fopen") == 0)
        fopen(at_root("c"), "w");
    else if (strcmp(call, "RENAME_EXCHANGE") == 0)
        renameat2(AT_FDCWD, at_root("a"), AT_FDCWD, at_root("a"), RENAME_EXCHANGE);
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    root = arguments[1];
    const char *scenario = arguments[2];
    if (strcmp(scenario, "replace") == 0)
        replace(1, 1);
    else if (strcmp(scenario, "replace-without-file-sync") == 0)
        replace(0, 1);
    else if (strcmp(scenario, "replace-without-directory-sync") == 0)
        replace(1, 0);
    else if (strcmp(scenario, "nested") == 0)
        nested(1);
    else if (strcmp(scenario, "nested-without-root-sync") == 0)
        nested(0);
    else if (strcmp(scenario, "all-calls") == 0)
        all_calls();
    else
        refused(scenario);
    return 0;
}
