/* Tells gradprobe what a training run's collectives belong to. For C (C99) and C++; nothing to link: the functions are
 * looked up in the plugin that NCCL has loaded, and do nothing while none is. (-ldl with a C library older than 2.34.)
 *
 *   gradprobe_step(n);               the collectives from here on belong to step n
 *   gradprobe_scalar("loss", x);     this rank's loss in this step: compare shows its dispersion over the ranks
 *   gradprobe_phase("eval");         what follows is another phase of the run
 *
 * From Python, without harm where it isn't loaded:
 *   import contextlib, ctypes, os
 *   with contextlib.suppress(OSError): ctypes.CDLL("libnccl-profiler-gradprobe.so", os.RTLD_NOLOAD).gradprobe_step(n)
 * with ctypes.c_double(x) and b"loss" for a scalar, and ctypes.c_uint64(n) from 2^31 on.
 *
 * A mark goes to the ring of every communicator of the process, before the communicator's next collective. So call
 * these functions where no other thread calls a collective, and equally on all ranks. A step and a phase hold until the
 * next one, also for communicators that are created later.
 *
 * - gradprobe_step: from its first call on, steps are those of the calls and no longer found from the sequence of
 *   collectives. Calling it again with the same n goes on with that step. Where n goes back (each epoch counts from 0,
 *   a checkpoint is loaded), the records' steps go on growing: their number is then n plus a constant, and the mark
 *   has both. Collectives that a CUDA graph replays are not called, so marks have no place among them: from a
 *   communicator's first replay on its steps are found from the sequence. Numbers from 2^63 on are ignored.
 * - gradprobe_scalar: any finite value, NaN or infinity. It belongs to the step in force; where there is none, to that
 * of the last collective before it. 159 bytes of the name are kept.
 * - Names are UTF-8. A null name is ignored.
 *
 * Threads: any, also several at a time. The functions lock a mutex that NCCL never waits for, and don't wait for the
 * device. They don't fail; in a forked child they do nothing. Not for signal handlers. */
#ifndef GRADPROBE_GRADPROBE_H
#define GRADPROBE_GRADPROBE_H

#include <stdint.h>

#ifndef GRADPROBE_DECLARE_ONLY
#include <dlfcn.h>
#include <stddef.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*gradprobe_step_function)(uint64_t step);
typedef void (*gradprobe_scalar_function)(const char* name, double value);
typedef void (*gradprobe_phase_function)(const char* name);
typedef const char* (*gradprobe_version_function)(void);

#ifdef GRADPROBE_DECLARE_ONLY /* for whoever links or implements the functions */

void gradprobe_step(uint64_t step);
void gradprobe_scalar(const char* name, double value);
void gradprobe_phase(const char* name);
const char* gradprobe_version(void);

#else

#ifdef RTLD_DEFAULT /* a GNU extension */
#define GRADPROBE_RTLD_DEFAULT RTLD_DEFAULT
#else
#define GRADPROBE_RTLD_DEFAULT ((void*)0)
#endif

/* One function in the libraries that can have it: the plugin, and the preload library or the program itself. */
struct gradprobe_found {
  void* plugin;
  void* preloaded;
  int looked;
};

static inline void* gradprobe_look_in(const char* library_name, const char* name) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_NOLOAD);
  void* function = library != NULL ? dlsym(library, name) : NULL;
  if (library != NULL) dlclose(library); /* it stays: neither library can be unloaded */
  return function;
}

static inline void gradprobe_find(struct gradprobe_found* found, const char* name) {
  /* What is preloaded or linked is there from the start; NCCL loads the plugin with its first communicator. */
  if (__atomic_load_n(&found->looked, __ATOMIC_ACQUIRE) == 0) {
    void* function = gradprobe_look_in("libgradprobe-preload.so", name);
    if (function == NULL) function = dlsym(GRADPROBE_RTLD_DEFAULT, name);
    __atomic_store_n(&found->preloaded, function, __ATOMIC_RELEASE);
    __atomic_store_n(&found->looked, 1, __ATOMIC_RELEASE);
  }
  if (__atomic_load_n(&found->plugin, __ATOMIC_ACQUIRE) == NULL) {
    void* function = gradprobe_look_in("libnccl-profiler-gradprobe.so", name);
    if (function != NULL) __atomic_store_n(&found->plugin, function, __ATOMIC_RELEASE);
  }
}

/* `call` with `function` in each of the libraries. The bytes of the address are copied, because ISO C has no conversion
 * from an object's pointer to a function's. */
#define GRADPROBE_CALL(type, name, call)                                                      \
  do {                                                                                        \
    static struct gradprobe_found gradprobe_found_;                                           \
    void* gradprobe_addresses_[2];                                                            \
    int gradprobe_i_;                                                                         \
    gradprobe_find(&gradprobe_found_, name);                                                  \
    gradprobe_addresses_[0] = __atomic_load_n(&gradprobe_found_.plugin, __ATOMIC_ACQUIRE);    \
    gradprobe_addresses_[1] = __atomic_load_n(&gradprobe_found_.preloaded, __ATOMIC_ACQUIRE); \
    if (gradprobe_addresses_[1] == gradprobe_addresses_[0]) gradprobe_addresses_[1] = NULL;   \
    for (gradprobe_i_ = 0; gradprobe_i_ < 2; gradprobe_i_++) {                                \
      type function;                                                                          \
      if (gradprobe_addresses_[gradprobe_i_] == NULL) continue;                               \
      __builtin_memcpy(&function, &gradprobe_addresses_[gradprobe_i_], sizeof function);      \
      call;                                                                                   \
    }                                                                                         \
  } while (0)

static inline void gradprobe_step(uint64_t step) {
  GRADPROBE_CALL(gradprobe_step_function, "gradprobe_step", function(step));
}

static inline void gradprobe_scalar(const char* name, double value) {
  GRADPROBE_CALL(gradprobe_scalar_function, "gradprobe_scalar", function(name, value));
}

static inline void gradprobe_phase(const char* name) {
  GRADPROBE_CALL(gradprobe_phase_function, "gradprobe_phase", function(name));
}

/* "0.1.0"; NULL while no plugin is loaded. */
static inline const char* gradprobe_version(void) {
  GRADPROBE_CALL(gradprobe_version_function, "gradprobe_version", return function());
  return NULL;
}

#undef GRADPROBE_CALL
#undef GRADPROBE_RTLD_DEFAULT

#endif

#ifdef __cplusplus
}
#endif

#endif
