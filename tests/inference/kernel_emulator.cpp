// Calls functions of a library of kernels, in the emulator of another kind of processor or operating system
// (kernel_emulator.py).
//
// Arguments: the library; the file of the memory shared with the caller, its address and its size. Each call on the
// standard input is answered by the function's result on the standard output.

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>

struct Call {
    char name[32];
    int64_t integers[24];                                                       // numbers and addresses
    double numbers[3];                                                          // or floats, in their first four bytes
};

#if defined(_WIN32)
// On Windows, arguments have places by their position, whatever their types are: those after the fourth, eight bytes
// each on the stack. Functions ignore additional arguments. No function has a float among its first four arguments.
#define NUMBER_TYPES
#define NUMBERS(numbers)
#else
// On aarch64, floats and doubles have registers of their own, wherever they stand among the arguments, and functions
// ignore additional arguments.
#define NUMBER_TYPES double, double, double,
#define NUMBERS(numbers) numbers[0], numbers[1], numbers[2],
#endif
typedef int64_t I;
typedef I Function(NUMBER_TYPES I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I);

// Maps the shared memory. Returns false if that is impossible.
bool map_memory(const char* file, void* address, size_t size) {
#if defined(_WIN32)
    HANDLE opened = CreateFileA(file, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr,
                                OPEN_EXISTING, 0, nullptr);
    HANDLE mapping = CreateFileMappingA(opened, nullptr, PAGE_READWRITE, 0, 0, nullptr);
    return mapping && MapViewOfFileEx(mapping, FILE_MAP_WRITE, 0, 0, size, address) == address;
#else
    return mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, open(file, O_RDWR), 0) ==
           address;
#endif
}

Function* find_function(void* library, const char* name) {
#if defined(_WIN32)
    return (Function*)GetProcAddress((HMODULE)library, name);
#else
    return (Function*)dlsym(library, name);
#endif
}

int main(int, char** arguments) {
#if defined(_WIN32)
    _setmode(0, _O_BINARY), _setmode(1, _O_BINARY);
    void* library = LoadLibraryA(arguments[1]);
#else
    void* library = dlopen(arguments[1], RTLD_NOW);
#endif
    if (!library || !map_memory(arguments[2], (void*)std::strtoull(arguments[3], nullptr, 10),
                                std::strtoull(arguments[4], nullptr, 10))) {
        std::fprintf(stderr, library ? "the shared memory cannot be mapped\n" : "the library cannot be loaded\n");
        return 1;
    }
    for (Call call; std::fread(&call, sizeof call, 1, stdin) == 1;) {
        const int64_t* i = call.integers;
        const int64_t result = find_function(library, call.name)(
            NUMBERS(call.numbers) i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12],
            i[13], i[14], i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23]);
        std::fwrite(&result, sizeof result, 1, stdout);
        std::fflush(stdout);
    }
}
