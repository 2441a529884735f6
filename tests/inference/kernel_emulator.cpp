// Calls functions of a library of kernels, in the emulator of another kind of processor (kernel_emulator.py).
//
// Arguments: the library; the file of the memory shared with the caller, its address and its size. Each call on the
// standard input is answered by the function's result on the standard output.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

struct Call {
    char name[32];
    long integers[24];                                                          // numbers and addresses
    double numbers[3];                                                          // or floats, in their first four bytes
};

// On aarch64, floats and doubles have registers of their own, wherever they stand among the arguments, and functions
// ignore additional arguments.
typedef long Function(double, double, double, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                      long, long, long, long, long, long, long, long, long);

int main(int, char** arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW), *address = (void*)std::strtoul(arguments[3], nullptr, 10);
    const int file = open(arguments[2], O_RDWR);
    if (!library || mmap(address, std::strtoul(arguments[4], nullptr, 10), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) != address) {
        std::fprintf(stderr, "%s\n", library ? "the shared memory cannot be mapped" : dlerror());
        return 1;
    }
    for (Call call; std::fread(&call, sizeof call, 1, stdin) == 1;) {
        const long* i = call.integers;
        const long result = ((Function*)dlsym(library, call.name))(
            call.numbers[0], call.numbers[1], call.numbers[2], i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14],
            i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23]);
        std::fwrite(&result, sizeof result, 1, stdout);
        std::fflush(stdout);
    }
}
