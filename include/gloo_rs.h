/*
 * gloo_rs: collective communications.
 *
 * Rules for all functions:
 *
 * - Functions return a status unless the comment says otherwise; results come through the last parameters, and are left
 *   alone on failure unless the comment says otherwise. gloo_rs_last_error_message() tells more about a failure, and
 *   gloo_rs_last_error() tells it to programs: the rank to blame, the system's error, bytes, and the operation.
 * - Pointers are NULL or valid: for the function's duration, unless the comment says longer. NULL is an error unless the
 *   comment says otherwise. Strings are UTF-8 and end with a NUL byte.
 * - Structs, lists and results are aligned as C demands of their types. Inputs and outputs of collectives are aligned to
 *   their elements' type: complex numbers to their parts, every other type to its own size. Those that are not are refused.
 *   The memory of gloo_rs_buffer_t and gloo_rs_unbound_buffer_t is bytes and needs no alignment.
 * - What a create function returned ends with the destroy function of its type, in any order: everything keeps what it
 *   needs alive. No call on a handle may begin once its destruction has.
 * - All handles may be used from several threads at once.
 * - Structs that a program fills begin with their size, which the init function of the struct sets along with defaults. So a
 *   program works with later versions of this library, whose structs may be longer. With an earlier version it works as long
 *   as it leaves the fields that this version does not know at zero; otherwise the call fails with
 *   GLOO_RS_ERROR_UNSUPPORTED. Calls read, and copy, options only while they run. A struct whose size is 0 is refused.
 * - Enumerations have the size of an int, so do not compile with -fshort-enums. A number that is none of an enumeration's
 *   values is refused with GLOO_RS_ERROR_INVALID_ARGUMENT. Flags are bool; in structs, any byte but 0 is true.
 * - Options may be NULL for defaults, but for collectives: gloo_rs_..._with refuses NULL.
 * - Collectives with a root ignore, on other ranks, pointers and numbers that only the root's part is about: a program may
 *   pass both buffers on all ranks.
 * - Timeouts are in milliseconds. 0 asks once: the call does what it can without waiting for another rank, and fails with
 *   GLOO_RS_ERROR_TIMEOUT if that does not complete it. GLOO_RS_TIMEOUT_INFINITE never ends a call. GLOO_RS_TIMEOUT_DEFAULT
 *   stands for the context's, or 30 seconds for what has no context; other negative numbers are errors.
 * - Callbacks must not let exceptions out, nor longjmp. They are called on the thread that made the call unless the
 *   comment says otherwise.
 *
 * Made by cbindgen from src/ffi: do not change by hand.
 */

#ifndef GLOO_RS_H
#define GLOO_RS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A compiler warns where a program ignores the status that such a function returns. */
#ifndef GLOO_RS_NODISCARD
#if defined(__GNUC__)
#define GLOO_RS_NODISCARD __attribute__((warn_unused_result))
#else
#define GLOO_RS_NODISCARD
#endif
#endif

/// As a timeout: the context's, or 30 seconds for what has no context.
#define GLOO_RS_TIMEOUT_DEFAULT -1

/// As a timeout: none, so that only an end, a failure or an abort ends the operation.
#define GLOO_RS_TIMEOUT_INFINITE INT64_MAX

/// The header's version: its first number.
#define GLOO_RS_VERSION_MAJOR 0

/// The second number of the header's version.
#define GLOO_RS_VERSION_MINOR 2

/// The third number of the header's version.
#define GLOO_RS_VERSION_PATCH 0

/// The header's version as one number, to compare: 1.2.3 is 10203. gloo_rs_version_number tells the library's.
#define GLOO_RS_VERSION_NUMBER (((GLOO_RS_VERSION_MAJOR * 10000) + (GLOO_RS_VERSION_MINOR * 100)) + GLOO_RS_VERSION_PATCH)

/// As a color: this rank is to be in none of the new contexts.
#define GLOO_RS_COLOR_UNDEFINED -1

/// What a call returned. The numbers never change; later versions may add some.
typedef enum gloo_rs_status_t {
  /// The call did what it should.
  GLOO_RS_OK = 0,
  /// The caller passed something that no call could accept.
  GLOO_RS_ERROR_INVALID_ARGUMENT = 1,
  /// The call makes no sense in the state that the object is in.
  GLOO_RS_ERROR_INVALID_OPERATION = 2,
  /// The deadline passed first.
  GLOO_RS_ERROR_TIMEOUT = 3,
  /// The operating system refused: a file, a socket, an interface.
  GLOO_RS_ERROR_IO = 4,
  /// A peer is gone or gave up, or its connection broke.
  GLOO_RS_ERROR_CONNECTION_LOST = 5,
  /// A wait was ended by an abort function.
  GLOO_RS_ERROR_ABORTED = 6,
  /// Ranks disagree: another collective, count, type, operation or root; or a peer spoke another protocol.
  GLOO_RS_ERROR_MISMATCH = 7,
  /// A key is not in the store.
  GLOO_RS_ERROR_NOT_FOUND = 8,
  /// Not built in, or not on this machine.
  GLOO_RS_ERROR_UNSUPPORTED = 9,
  /// Memory or descriptors ran out.
  GLOO_RS_ERROR_RESOURCE_EXHAUSTED = 10,
  /// A callback of the caller's returned an error.
  GLOO_RS_ERROR_CALLBACK = 11,
  /// A defect of this library.
  GLOO_RS_ERROR_INTERNAL = 12,
  /// This process has closed the context or the pair, or destroyed the buffer.
  GLOO_RS_ERROR_CLOSED = 13,
} gloo_rs_status_t;

/// The type of one element. Buffers of collectives are aligned as each says.
typedef enum gloo_rs_data_type_t {
  /// No type: the default in options, which calls refuse.
  GLOO_RS_DATA_TYPE_UNSET = 0,
  /// Signed 8-bit integer; any alignment.
  GLOO_RS_INT8 = 1,
  /// Unsigned 8-bit integer; any alignment.
  GLOO_RS_UINT8 = 2,
  /// Signed 16-bit integer; aligned to 2 bytes.
  GLOO_RS_INT16 = 3,
  /// Unsigned 16-bit integer; aligned to 2 bytes.
  GLOO_RS_UINT16 = 4,
  /// Signed 32-bit integer; aligned to 4 bytes.
  GLOO_RS_INT32 = 5,
  /// Unsigned 32-bit integer; aligned to 4 bytes.
  GLOO_RS_UINT32 = 6,
  /// Signed 64-bit integer; aligned to 8 bytes.
  GLOO_RS_INT64 = 7,
  /// Unsigned 64-bit integer; aligned to 8 bytes.
  GLOO_RS_UINT64 = 8,
  /// IEEE 754 binary16; aligned to 2 bytes.
  GLOO_RS_FLOAT16 = 9,
  /// The upper half of an IEEE 754 binary32; aligned to 2 bytes.
  GLOO_RS_BFLOAT16 = 10,
  /// IEEE 754 binary32: `float`; aligned to 4 bytes.
  GLOO_RS_FLOAT32 = 11,
  /// IEEE 754 binary64: `double`; aligned to 8 bytes.
  GLOO_RS_FLOAT64 = 12,
  /// Two binary32, real and imaginary: `float _Complex`, `std::complex<float>`; aligned to 4 bytes.
  GLOO_RS_COMPLEX64 = 13,
  /// Two binary64, real and imaginary: `double _Complex`, `std::complex<double>`; aligned to 8 bytes.
  GLOO_RS_COMPLEX128 = 14,
  /// One byte: zero is false, anything else is true; results are 0 or 1. Any alignment.
  GLOO_RS_BOOL = 15,
} gloo_rs_data_type_t;

/// How important a log message is.
typedef enum gloo_rs_log_level_t {
  /// Something that needs an operator's attention, such as a connection that belongs to no job. Calls return their
  /// errors; these are not logged.
  GLOO_RS_LOG_WARNING = 1,
  /// An event, such as the address that a device chose.
  GLOO_RS_LOG_NOTICE = 2,
  /// A detail that helps to find a fault.
  GLOO_RS_LOG_DETAIL = 3,
} gloo_rs_log_level_t;

/// When connections are made.
typedef enum gloo_rs_connect_t {
  /// On first use.
  GLOO_RS_CONNECT_LAZY = 0,
  /// To all ranks, before gloo_rs_context_connect returns.
  GLOO_RS_CONNECT_FULL = 1,
} gloo_rs_connect_t;

/// Whether ranks compare their calls before each collective.
typedef enum gloo_rs_check_calls_t {
  /// As the environment variable GLOO_RS_CHECK_CALLS says (1 or 0), else off.
  GLOO_RS_CHECK_CALLS_DEFAULT = 0,
  /// They do.
  GLOO_RS_CHECK_CALLS_ON = 1,
  /// They do not.
  GLOO_RS_CHECK_CALLS_OFF = 2,
} gloo_rs_check_calls_t;

/// How two elements become one.
typedef enum gloo_rs_op_t {
  /// `a + b`; integers wrap; logical or for GLOO_RS_BOOL.
  GLOO_RS_SUM = 0,
  /// `a * b`; integers wrap; logical and for GLOO_RS_BOOL.
  GLOO_RS_PRODUCT = 1,
  /// The smaller; a NaN wins over numbers. Not for complex types.
  GLOO_RS_MIN = 2,
  /// The larger; a NaN wins over numbers. Not for complex types.
  GLOO_RS_MAX = 3,
  /// The sum, divided once at the end by the number of contributions; integers truncate towards zero. Not for GLOO_RS_BOOL,
  /// nor for scan and exscan. All ranks must pass the same number of inputs.
  GLOO_RS_AVERAGE = 4,
  /// Bitwise and; integers and GLOO_RS_BOOL only.
  GLOO_RS_AND = 5,
  /// Bitwise or; integers and GLOO_RS_BOOL only.
  GLOO_RS_OR = 6,
  /// Bitwise exclusive or; integers and GLOO_RS_BOOL only.
  GLOO_RS_XOR = 7,
} gloo_rs_op_t;

/// One end of a one-sided channel to one peer: what a send buffer sends is written into the peer's receive buffer of the
/// same slot. Keeps its context's connections alive. Safe to use from several threads.
typedef struct gloo_rs_buffer_t gloo_rs_buffer_t;

/// One process's membership in a group of ranks. Safe to use from several threads; collectives that run at the same time
/// need different tags, unless they are different collectives.
typedef struct gloo_rs_context_t gloo_rs_context_t;

/// Addresses of this host where connections arrive, and the thread that serves what nobody waits on. Contexts keep their
/// device alive, so it may be destroyed before them. Any number of contexts may share one; safe to use from any thread.
typedef struct gloo_rs_device_t gloo_rs_device_t;

/// The connection to one peer, for contexts that are connected by hand, and for bound buffers. Keeps its context's
/// connections alive. Safe to use from several threads.
typedef struct gloo_rs_pair_t gloo_rs_pair_t;

/// A key-value store that all ranks of a job reach. Keys are non-empty strings of at most 4096 bytes; values are any bytes,
/// at most 64 MiB. Safe to use from several threads.
typedef struct gloo_rs_store_t gloo_rs_store_t;

/// A buffer for messages to and from any rank of a context. Keeps its context's connections alive. Safe to use from several
/// threads.
typedef struct gloo_rs_unbound_buffer_t gloo_rs_unbound_buffer_t;

/// What went wrong, for programs. Set up by gloo_rs_error_init, filled by gloo_rs_last_error and gloo_rs_context_broken.
typedef struct gloo_rs_error_t {
  /// sizeof(gloo_rs_error_t).
  size_t struct_size;
  /// What the failed call returned.
  enum gloo_rs_status_t status;
  /// The rank with which the failure began, whichever rank saw it first: the one that was lost, that stopped answering, whose
  /// call differs, whose process gave up, or that did not come. -1 if that is no rank, or unknown. It may be this one.
  int32_t rank;
  /// The operating system's error number, as in errno, of a connection or file that this process saw fail; 0 if there is none.
  int32_t system_error;
  /// After a timeout: how many of `bytes_wanted` had come, or gone, of what was waited for from `rank`, or from any rank.
  /// 0 of 0 where that says nothing.
  uint64_t bytes_done;
  /// See `bytes_done`.
  uint64_t bytes_wanted;
  /// What failed: a collective by its name (`allreduce`), `connect`, `send` or `recv`; else the words of the function's name
  /// (`store get`, `device create`). Never NULL; empty if no call failed yet. Lives as long as `message`.
  const char *operation;
  /// As gloo_rs_last_error_message() returns, and lives as long: until the next failing call on this thread, or its end.
  const char *message;
} gloo_rs_error_t;

/// Callback for log messages that no call returns. `message` is text without the line's end, valid during the call. Called from
/// the device's own thread and from threads in calls, also from several at once, while the library holds its locks: it must
/// not call this library, and no exception may leave it.
typedef void (*gloo_rs_log_fn_t)(enum gloo_rs_log_level_t level, const char *message, void *user);

/// Which addresses of this host a device uses: one of IPv4 and one of IPv6, where there are both. With neither
/// `interface_name` nor `hostname`, the environment variable GLOO_RS_SOCKET_IFNAME stands for `interface_name`. Without that
/// too, or if it only excludes, the device listens once its first context connects: on loopback if all ranks of that context
/// are on this host, else on the addresses from which this host reaches the store or the other ranks. Loopback is never
/// used by ranks on several hosts. Set up by gloo_rs_device_options_init.
typedef struct gloo_rs_device_options_t {
  /// sizeof(gloo_rs_device_options_t).
  size_t struct_size;
  /// The network interfaces that may be used, separated by commas, the preferred first; NULL for any. An item is a name,
  /// such as `eth0`, where `*` stands for any characters, an IP address, or a network, such as `10.0.0.0/8` or `fd00::/8`.
  /// With `^` in front of the list all others may be used: `^docker*,virbr0`.
  const char *interface_name;
  /// A host name of this host, or an IPv4 or IPv6 address of it; NULL for none in particular.
  const char *hostname;
  /// TCP port to listen on; 0 lets the system choose.
  uint16_t port;
  /// Callback for log messages that no call returns. NULL for none, or, if the environment variable GLOO_RS_LOG is
  /// `warning`, `notice` or `detail`, for messages of this level and of more important ones on stderr.
  gloo_rs_log_fn_t log;
  /// Passed to `log` and to `log_destroy`.
  void *log_user;
  /// Called once, on any thread, when `log` will not be called any more: the device and everything made of it are destroyed.
  /// Not called if creating the device fails. It must not call this library. May be NULL.
  void (*log_destroy)(void *user);
} gloo_rs_device_options_t;

/// How a store over TCP behaves. Set up by gloo_rs_tcp_store_options_init.
typedef struct gloo_rs_tcp_store_options_t {
  /// sizeof(gloo_rs_tcp_store_options_t).
  size_t struct_size;
  /// The job's token, which server and clients must all have. NULL for what GLOO_RS_TOKEN holds in the environment; empty
  /// for none: then whoever reaches the server's port can read and change every key. Copied.
  const char *token;
  /// With `serve`, callback for messages about connections that the server drops. NULL as in gloo_rs_device_options_t.
  gloo_rs_log_fn_t log;
  /// Passed to `log` and to `log_destroy`.
  void *log_user;
  /// Called once, on any thread, when `log` will not be called any more: the store and its prefixes are destroyed. Not called
  /// if creating the store fails. It must not call this library. May be NULL.
  void (*log_destroy)(void *user);
} gloo_rs_tcp_store_options_t;

/// The functions of a store of the caller's. Set up by gloo_rs_store_callbacks_init; functions that are missing are NULL.
///
/// All return a status: GLOO_RS_OK, GLOO_RS_ERROR_TIMEOUT when time is up, or another error's number. They are called on the
/// threads that use the store, possibly on several at once, get `user`, and must not let exceptions out. Pointers that they
/// get are valid during the call only. Their `timeout_ms` is never negative: 0 asks once, and
/// GLOO_RS_TIMEOUT_INFINITE has no end.
typedef struct gloo_rs_store_callbacks_t {
  /// sizeof(gloo_rs_store_callbacks_t).
  size_t struct_size;
  /// Whether a `timeout_ms` of 0 means no timeout to these functions, as to Gloo's stores. They are then never called with 0. So the
  /// library cannot ask such a store once: the error of a failed connect does not name the ranks that are missing, and
  /// gloo_rs_store_get and others with a timeout of 0 fail with GLOO_RS_ERROR_UNSUPPORTED.
  bool waits_block;
  /// Passed to every function.
  void *user;
  /// Sets `key` to the `bytes` at `value`, replacing what it has. Required.
  enum gloo_rs_status_t (*set)(const char *key, const void *value, size_t bytes, void *user);
  /// Waits until `key` has a value, and passes it to gloo_rs_store_return_value with `sink` before it returns. Required.
  enum gloo_rs_status_t (*get)(const char *key, int64_t timeout_ms, void *sink, void *user);
  /// Waits until all `n` `keys` have values. If NULL, `get` is called for each.
  enum gloo_rs_status_t (*wait)(const char *const *keys, size_t n, int64_t timeout_ms, void *user);
  /// Waits until all `n` `keys` have values, and passes each to gloo_rs_store_return_value with `sink`, one for each key, in their
  /// order. If NULL, `wait` and `get` are called.
  enum gloo_rs_status_t (*multi_get)(const char *const *keys, size_t n, int64_t timeout_ms, void *sink, void *user);
  /// Sets each of the `n` `keys` to the `bytes[i]` bytes at `values[i]`. If NULL, `set` is called for each.
  enum gloo_rs_status_t (*multi_set)(const char *const *keys,
                                     const void *const *values,
                                     const size_t *bytes,
                                     size_t n,
                                     void *user);
  /// Adds `amount` to the decimal integer at `key`, 0 if it has no value, atomically, and sets `*sum` to the result. If
  /// NULL, the store cannot add.
  enum gloo_rs_status_t (*add)(const char *key, int64_t amount, int64_t *sum, void *user);
  /// Appends the `bytes` at `value` to the value of `key`, empty if it has none, atomically. If NULL, the store cannot
  /// append.
  enum gloo_rs_status_t (*append)(const char *key, const void *value, size_t bytes, void *user);
  /// Removes `key`, and sets `*existed` to whether it was there. If NULL, the store cannot delete.
  enum gloo_rs_status_t (*remove)(const char *key, bool *existed, void *user);
  /// Called once, when nothing uses the store any more. May be NULL.
  void (*destroy)(void *user);
} gloo_rs_store_callbacks_t;

/// How many connections have arrived since the listener was created, by what became of them. Set up by
/// gloo_rs_connection_statistics_init.
typedef struct gloo_rs_connection_statistics_t {
  /// sizeof(gloo_rs_connection_statistics_t).
  size_t struct_size;
  /// Proved that they belong to the job.
  uint64_t accepted;
  /// Spoke another protocol, or this one wrongly.
  uint64_t foreign;
  /// Spoke another version of the protocol.
  uint64_t other_version;
  /// Sought a context that is not here, or no longer.
  uint64_t unknown_context;
  /// Proved nothing: another token, a token on one side only, or a replayed or forged proof.
  uint64_t unproven;
  /// Ended in the middle of the handshake, or before it.
  uint64_t incomplete;
  /// Did not finish the handshake in time.
  uint64_t timed_out;
  /// Made room for newer ones while too many were in the handshake.
  uint64_t crowded_out;
} gloo_rs_connection_statistics_t;

/// How to use a Redis server. Set up by gloo_rs_redis_options_init.
typedef struct gloo_rs_redis_options_t {
  /// sizeof(gloo_rs_redis_options_t).
  size_t struct_size;
  /// Whether to speak TLS.
  bool tls;
  /// With `tls`: whether to accept any certificate, which is for tests only.
  bool insecure;
  /// A user of the server's access control list; NULL for the default user.
  const char *username;
  /// The user's, or the server's, password; NULL for none. In no message.
  const char *password;
  /// What is put in front of every key; NULL for `gloo_rs/`. Each job needs one that no job used before, unless it has a
  /// server or a database for itself.
  const char *prefix;
  /// With `tls`: a file in PEM format with the only authorities to trust; NULL for those that the system trusts.
  const char *ca_file;
  /// With `tls`: a file in PEM format with the certificate to show; NULL for none.
  const char *cert_file;
  /// With `cert_file`: a file in PEM format with its private key.
  const char *key_file;
  /// Number of the server's database.
  uint32_t database;
  /// Seconds that a key lives after it was written last, 86400 by default; 0 for ever.
  uint32_t ttl_s;
} gloo_rs_redis_options_t;

/// How a context behaves. Set up by gloo_rs_context_options_init.
typedef struct gloo_rs_context_options_t {
  /// sizeof(gloo_rs_context_options_t).
  size_t struct_size;
  /// Milliseconds that any one operation may take, if the call does not say otherwise; GLOO_RS_TIMEOUT_DEFAULT for 30 s.
  int64_t timeout_ms;
  /// GLOO_RS_CONNECT_LAZY (the default) or GLOO_RS_CONNECT_FULL.
  enum gloo_rs_connect_t connect;
  /// GLOO_RS_CHECK_CALLS_DEFAULT, _ON or _OFF; the same on all ranks. On, ranks compare their calls before each
  /// collective: calls that differ fail on every rank with GLOO_RS_ERROR_MISMATCH and a message that says which ranks call
  /// what, nothing has been sent or received of them, and the context stays usable. It costs an allgather per call.
  enum gloo_rs_check_calls_t check_calls;
  /// Largest piece, in bytes, that a collective sends as one message; 0 for the default, 1 MiB. The same on all ranks.
  size_t max_segment_bytes;
  /// The job's token: every rank must have the same to be let in. NULL for what GLOO_RS_TOKEN holds in the environment;
  /// empty for none. Copied.
  const char *token;
  /// Where the constants come from by which `auto` chooses algorithms: the path of a tuning file (from `gloo-rs tune`);
  /// `measure`, to measure them in gloo_rs_context_connect, in a few milliseconds; or `default`, for built-in ones. NULL for
  /// what GLOO_RS_TUNING holds in the environment, else `measure`. Only rank 0's counts. A file that cannot be read fails
  /// gloo_rs_context_connect on every rank. Copied.
  const char *tuning;
} gloo_rs_context_options_t;

/// An allgather of the caller's: every rank gives the `bytes` at `input`; `output` gets those of all ranks, `bytes` each, in the
/// order of ranks. Returns GLOO_RS_OK, or an error's number. It must not let exceptions out.
typedef enum gloo_rs_status_t (*gloo_rs_allgather_fn_t)(const void *input, void *output, size_t bytes, void *user);

/// Combines `count` elements the caller's way: `into[i] = left[i] op right[i]`. Returns 0, or anything else to fail the
/// call with GLOO_RS_ERROR_CALLBACK. `into` may equal `left` or `right`. Called only from the thread that made the
/// collective call, and only until that returns; no exception may leave it. Other threads can use the context meanwhile, and so
/// can the function: a collective that runs already needs another tag; a context that the function closes or destroys fails the
/// call with GLOO_RS_ERROR_CLOSED once the function has returned. The call's timeout, too, is looked at only then. The
/// operation must be associative, and commutative but for scan and exscan.
typedef int32_t (*gloo_rs_reduce_fn_t)(void *into, const void *left, const void *right, size_t count, void *user);

/// Options of every collective, for the functions gloo_rs_..._with. Set up by gloo_rs_collective_options_init. A field that
/// the collective does not use must keep its default: a call with another value is refused with
/// GLOO_RS_ERROR_INVALID_ARGUMENT and a message that names the collective and the field. Which buffers, of how many elements
/// each, the comment of the function says.
///
/// The functions without `_with` take one input and one output as arguments, and all else has its default: so their tag is 0,
/// and each of them can run once at a time on a context.
///
/// All collectives: every rank of the context makes the same call. The buffers and the options are the caller's; they are
/// used until the function returns, which it does when this rank's part is done. Counts are in elements, not bytes. A call
/// that is wrong in itself fails with GLOO_RS_ERROR_INVALID_ARGUMENT or GLOO_RS_ERROR_INVALID_OPERATION and nothing is sent;
/// one that fails later (with GLOO_RS_ERROR_TIMEOUT, GLOO_RS_ERROR_CONNECTION_LOST, GLOO_RS_ERROR_MISMATCH,
/// GLOO_RS_ERROR_CALLBACK and others) breaks the context, leaves its outputs unspecified, and every later collective on the
/// context fails. Threads may call different collectives at the same time, and one collective with different tags. With
/// check_calls in the context's options they need different tags for different collectives, too.
typedef struct gloo_rs_collective_options_t {
  /// sizeof(gloo_rs_collective_options_t).
  size_t struct_size;
  /// Algorithm by name, such as "ring"; NULL or "auto" lets the library choose. gloo_rs_algorithms tells the names. The same
  /// on all ranks. "binomial" of gatherv and scatterv and "bruck" of alltoallv first bring the counts that only some ranks
  /// have to all ranks, within the same call. Used by all.
  const char *algorithm;
  /// Milliseconds until the call fails; GLOO_RS_TIMEOUT_DEFAULT for the context's. Used by all.
  int64_t timeout_ms;
  /// Largest piece, in bytes, that is sent as one message; 0 for the context's. The same on all ranks. Used by all.
  size_t max_segment_bytes;
  /// Tells apart calls of one collective that run at the same time on one context; calls of different collectives are apart
  /// anyway. The same on all ranks. Used by all.
  uint64_t tag;
  /// Type of the elements. The same on all ranks. Used by all but barrier.
  enum gloo_rs_data_type_t data_type;
  /// Bytes of one element, for elements of the caller's own type, such as a struct of 12 bytes: instead of `data_type`, and where
  /// elements are combined, with `function`. Otherwise 0. The same on all ranks. Used by all but barrier.
  size_t element_bytes;
  /// How elements are combined; GLOO_RS_SUM by default. The same on all ranks. Used by allreduce, reduce, reduce_scatter,
  /// scan, exscan.
  enum gloo_rs_op_t op;
  /// Rank of the root. The same on all ranks. Used by reduce, broadcast, gather, gatherv, scatter, scatterv.
  int32_t root;
  /// The caller's operation instead of `op`, or NULL. Used by allreduce, reduce, reduce_scatter, scan, exscan.
  gloo_rs_reduce_fn_t function;
  /// Passed to `function`. Used by allreduce, reduce, reduce_scatter, scan, exscan.
  void *user;
  /// Buffers that are only read. Used by all but barrier.
  const void *const *inputs;
  /// Number of inputs; 0 for in place. Used by all but barrier.
  size_t num_inputs;
  /// Buffers for the result. Used by all but barrier.
  void *const *outputs;
  /// Number of outputs. Used by all but barrier.
  size_t num_outputs;
  /// Elements of a buffer, or of a block of one that has a block for each rank. The same on all ranks; but of gatherv and
  /// scatterv what this rank sends or gets, and the root's is ignored. 0 where reduce_scatter has `recv_counts`. Used by all
  /// but allgatherv, alltoallv, barrier.
  size_t count;
  /// Elements for each rank, in the order of ranks; of scatterv on the root, and ignored on other ranks. Used by scatterv,
  /// alltoallv.
  const size_t *send_counts;
  /// Elements from each rank, in the order of ranks; of gatherv on the root, and ignored on other ranks. Of reduce_scatter,
  /// elements of the result that each rank gets; NULL if every rank gets `count`. Used by reduce_scatter, allgatherv, gatherv,
  /// alltoallv.
  const size_t *recv_counts;
  /// Length of `send_counts` and of `recv_counts`: the size of the context. Used by reduce_scatter, allgatherv, gatherv,
  /// scatterv, alltoallv.
  size_t num_counts;
  /// Number of partners: at most the base-2 logarithm of the context's size, which must be a power of two. The same on all
  /// ranks. Used by pairwise_exchange.
  size_t destinations;
  /// Group size of the algorithm "bcube"; 0 for 2. The same on all ranks. Used by allreduce.
  size_t base;
  /// The group of each rank, in the order of ranks: any numbers, equal for ranks of one group. For the algorithms
  /// "hierarchical", "torus_2d", "torus_nd" and "mesh_2d"; NULL for the hosts that the ranks run on. The same on all ranks.
  /// Used by allreduce.
  const uint32_t *groups;
  /// Length of `groups`: the size of the context, or 0. Used by allreduce.
  size_t num_groups;
  /// Extents of the grid that the ranks form, whose product is the size of the context; neighbours in the first dimension
  /// have consecutive ranks. For "torus_2d" and "mesh_2d", which have two dimensions, and "torus_nd"; they then do without
  /// groups. NULL for the library's choice. The same on all ranks. Used by allreduce.
  const size_t *dims;
  /// Length of `dims`. Used by allreduce.
  size_t num_dims;
} gloo_rs_collective_options_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The version of the library that the program runs with, as GLOO_RS_VERSION_NUMBER. It may be later than the header's.
uint32_t gloo_rs_version_number(void);

/// The version of the library that the program runs with: `1.2.3`. A static string.
const char *gloo_rs_version(void);

/// What this build of the library holds, separated by commas: `tcp`, and `redis` unless it was left out. A static string.
const char *gloo_rs_built_features(void);

/// The names of the algorithms of `collective` (`allreduce`, `reduce_scatter`), separated by commas: what `algorithm` in its
/// options may say instead of `auto`. A static string; NULL if there is no such collective.
const char *gloo_rs_algorithms(const char *collective);

/// The name of `status`, as in this header: `GLOO_RS_ERROR_TIMEOUT`. A static string; `unknown status` for other numbers.
const char *gloo_rs_status_name(enum gloo_rs_status_t status);

/// Frees memory that this library handed to the caller for freeing, as gloo_rs_store_get does. NULL is fine.
void gloo_rs_free(void *memory);

/// Bytes of one element of `data_type`; 0 for numbers that name no type.
size_t gloo_rs_data_type_size(enum gloo_rs_data_type_t data_type);

/// Fills at most `struct_size` bytes of `error`, which is to be sizeof(gloo_rs_error_t): nothing has failed.
void gloo_rs_error_init(struct gloo_rs_error_t *error, size_t struct_size);

/// Tells a program what went wrong in the last failed call of the calling thread, in `*error`, which gloo_rs_error_init has set up;
/// so many bytes are written at most as its `struct_size` says. If no call failed yet, the status there is GLOO_RS_OK.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_last_error(struct gloo_rs_error_t *error);

/// What went wrong in the last failed call of the calling thread, in words: which argument, rank, peer, key, how many bytes, after
/// how long. Never NULL; empty if no call failed yet. The string is the library's and lives until the next failing call
/// on this thread, or the thread's end.
const char *gloo_rs_last_error_message(void);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_device_options_t), with defaults.
void gloo_rs_device_options_init(struct gloo_rs_device_options_t *options, size_t struct_size);

/// Starts the device's thread, and binds and listens if the options name where. `options` may be NULL for defaults. The caller
/// owns the result and ends it with gloo_rs_device_destroy; on failure `*device` is NULL. Fails with
/// GLOO_RS_ERROR_INVALID_ARGUMENT if there is no such interface or address, with GLOO_RS_ERROR_IO if the port is taken. The
/// environment must not change meanwhile.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_device_create(const struct gloo_rs_device_options_t *options,
                                            struct gloo_rs_device_t **device);

/// Ends the caller's hold on the device; its thread ends with the last context made of it. No other
/// thread may be beginning a call on the handle. NULL is fine.
void gloo_rs_device_destroy(struct gloo_rs_device_t *device);

/// Where peers connect to, such as `10.0.0.1:41234` or `[fd00::1]:41234`, the preferred address if there are several; an
/// empty string as long as the device, for which nothing was named, does not listen because no context has connected. Copied with its NUL byte into `buffer` of
/// `capacity` bytes. `*needed` is set to its bytes; `buffer` may be NULL to ask for that only, `needed` may be NULL
/// otherwise.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_device_address(const struct gloo_rs_device_t *device,
                                             char *buffer,
                                             size_t capacity,
                                             size_t *needed);

/// The network interface that has the address of gloo_rs_device_address, such as `eth0`, or an empty string if none has;
/// copied as that does.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_device_interface(const struct gloo_rs_device_t *device,
                                               char *buffer,
                                               size_t capacity,
                                               size_t *needed);

/// A store that one process, the one with `serve`, serves to all over TCP, until it destroys the handle. `host` is the
/// server's name or address; `port` its port, or 0 with `serve` to let the system choose (gloo_rs_store_port tells). The
/// others try to connect until `timeout_ms`; GLOO_RS_TIMEOUT_DEFAULT for 30 s. The caller owns the result and ends it with
/// gloo_rs_store_destroy; on failure `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_tcp(const char *host,
                                               uint16_t port,
                                               bool serve,
                                               int64_t timeout_ms,
                                               struct gloo_rs_store_t **store);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_tcp_store_options_t), with defaults.
void gloo_rs_tcp_store_options_init(struct gloo_rs_tcp_store_options_t *options, size_t struct_size);

/// As gloo_rs_store_create_tcp, with options; NULL for defaults. Fails with GLOO_RS_ERROR_MISMATCH if the server has another
/// token, or only one side has one.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_tcp_with(const char *host,
                                                    uint16_t port,
                                                    bool serve,
                                                    int64_t timeout_ms,
                                                    const struct gloo_rs_tcp_store_options_t *options,
                                                    struct gloo_rs_store_t **store);

/// The port of a store made by gloo_rs_store_create_tcp; others fail with GLOO_RS_ERROR_INVALID_OPERATION.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_store_port(const struct gloo_rs_store_t *store, uint16_t *port);

/// A store in the directory `path`, which all ranks see and which is made if it is not there. Each job needs a directory,
/// or a prefix, that no job used before. The caller owns the result and ends it with gloo_rs_store_destroy; on failure
/// `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_file(const char *path,
                                                struct gloo_rs_store_t **store);

/// The store of this process with that `name`, for ranks that are threads; it lives as long as somebody has it. The caller
/// owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_in_process(const char *name,
                                                      struct gloo_rs_store_t **store);

/// The part of `base` whose keys begin with `prefix` and a slash, which it puts before every key. Keeps `base`'s store alive
/// by itself. The caller owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_prefix(const char *prefix,
                                                  struct gloo_rs_store_t *base,
                                                  struct gloo_rs_store_t **store);

/// The store that `url` names: `tcp://HOST:PORT`, which rank 0 serves; `file:///DIRECTORY`;
/// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, over TLS with `rediss`; or `inproc://NAME`, in this process. A server is
/// looked for until `timeout_ms`, GLOO_RS_TIMEOUT_DEFAULT for 30 s. The options of gloo_rs_redis_options_t stand behind a
/// question mark: `?prefix=job-17/&ttl=3600&ca=FILE&cert=FILE&key=FILE&insecure=true`; user, password and options may hold
/// escapes like `%40`. The caller owns the result and ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_url(const char *url,
                                               int32_t rank,
                                               int64_t timeout_ms,
                                               struct gloo_rs_store_t **store);

/// Sets `key` to a copy of the `bytes` at `value`, replacing what it has.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_set(struct gloo_rs_store_t *store,
                                        const char *key,
                                        const void *value,
                                        size_t bytes);

/// Waits until `key` has a value, and sets `*value` to a copy of it and `*bytes` to its length. The caller ends the copy
/// with gloo_rs_free; it is not NULL even if the length is 0. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for
/// 30 s, 0 to ask once.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_get(struct gloo_rs_store_t *store,
                                        const char *key,
                                        int64_t timeout_ms,
                                        void **value,
                                        size_t *bytes);

/// Waits until all `n` `keys` have values. Fails with GLOO_RS_ERROR_TIMEOUT, naming those that have none. `timeout_ms` is in
/// milliseconds; GLOO_RS_TIMEOUT_DEFAULT for 30 s, 0 to ask once.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_wait(struct gloo_rs_store_t *store,
                                         const char *const *keys,
                                         size_t n,
                                         int64_t timeout_ms);

/// Adds `amount` to the decimal integer at `key`, 0 if it has no value, and sets `*sum` to the result. Atomic.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_add(struct gloo_rs_store_t *store,
                                        const char *key,
                                        int64_t amount,
                                        int64_t *sum);

/// Appends the `bytes` at `value` to the value of `key`, empty if it has none. Atomic.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_append(struct gloo_rs_store_t *store,
                                           const char *key,
                                           const void *value,
                                           size_t bytes);

/// Waits until all `n` `keys` have values, and sets `values[i]` and `bytes[i]` as gloo_rs_store_get does. The caller ends
/// each copy with gloo_rs_free; on failure all are NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_multi_get(struct gloo_rs_store_t *store,
                                              const char *const *keys,
                                              size_t n,
                                              int64_t timeout_ms,
                                              void **values,
                                              size_t *bytes);

/// Sets each of the `n` `keys` to a copy of the `bytes[i]` bytes at `values[i]`.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_multi_set(struct gloo_rs_store_t *store,
                                              const char *const *keys,
                                              const void *const *values,
                                              const size_t *bytes,
                                              size_t n);

/// Removes `key`, and sets `*existed`, if not NULL, to whether it was there.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_delete(struct gloo_rs_store_t *store,
                                           const char *key,
                                           bool *existed);

/// Ends the caller's hold on the store. A store that this process serves over TCP ends with it, unless a prefix of it lives.
/// No other thread may be beginning a call on the handle. NULL is fine.
void gloo_rs_store_destroy(struct gloo_rs_store_t *store);

/// Sets all functions to NULL. `struct_size` is sizeof(gloo_rs_store_callbacks_t). NULL is left alone.
void gloo_rs_store_callbacks_init(struct gloo_rs_store_callbacks_t *callbacks, size_t struct_size);

/// A store made of the caller's functions, which are copied. On success, `destroy` among them is called when nothing uses
/// the store any more; on failure it is not, and `*store` is NULL. The caller owns the result and ends it with
/// gloo_rs_store_destroy.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_callbacks(const struct gloo_rs_store_callbacks_t *callbacks,
                                                     struct gloo_rs_store_t **store);

/// Hands a value that a `get` or `multi_get` of gloo_rs_store_callbacks_t found to the library, which copies it: `sink` is what the
/// function got, `value` has `bytes` bytes. Only to be called by that function, on its thread, once for each key, in the order of
/// keys. Fewer or more calls fail what the library wanted with GLOO_RS_ERROR_CALLBACK.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_return_value(void *sink,
                                                 const void *value,
                                                 size_t bytes);

/// Sets `struct_size`, which is to be sizeof(gloo_rs_connection_statistics_t), and all counts to 0. NULL is left alone.
void gloo_rs_connection_statistics_init(struct gloo_rs_connection_statistics_t *statistics, size_t struct_size);

/// What has become of the connections that arrived at `device`. At most `statistics->struct_size` bytes are written.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_device_connection_statistics(const struct gloo_rs_device_t *device,
                                                           struct gloo_rs_connection_statistics_t *statistics);

/// The same for the server of a store that this process serves over TCP, made by gloo_rs_store_create_tcp or
/// gloo_rs_store_create_tcp_with; others fail with GLOO_RS_ERROR_INVALID_OPERATION.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_connection_statistics(const struct gloo_rs_store_t *store,
                                                          struct gloo_rs_connection_statistics_t *statistics);

/// Sets the defaults. `struct_size` is sizeof(gloo_rs_redis_options_t). NULL is left alone.
void gloo_rs_redis_options_init(struct gloo_rs_redis_options_t *options, size_t struct_size);

/// A store in the Redis server at `host` and `port`, which is looked for until `timeout_ms`, GLOO_RS_TIMEOUT_DEFAULT for
/// 30 s. `options` may be NULL. All ranks use the same server and options; any number of them may come and go. Fails with
/// GLOO_RS_ERROR_UNSUPPORTED if this build has no Redis store (gloo_rs_built_features tells). The caller owns the result and
/// ends it with gloo_rs_store_destroy; on failure `*store` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_store_create_redis(const char *host,
                                                 uint16_t port,
                                                 const struct gloo_rs_redis_options_t *options,
                                                 int64_t timeout_ms,
                                                 struct gloo_rs_store_t **store);

/// Opens the store of a launched job and tells this process's rank and the number of ranks, from the environment that
/// launchers set: `gloo-rs run`, torchrun, Open MPI's, MPICH's and Intel MPI's mpirun, Slurm's srun. docs/launchers.md says
/// which variables are read, and which store that gives. GLOO_RS_STORE (a URL as for gloo_rs_store_create_url), or
/// MASTER_ADDR and MASTER_PORT, where rank 0 serves a TCP store, name the store whatever the launcher.
///
/// Collective: every process of the job calls it, once. They look for rank 0's store until `timeout_ms`,
/// GLOO_RS_TIMEOUT_DEFAULT for 30 s. The caller owns the store and ends it with gloo_rs_store_destroy; on failure `*store`
/// is NULL. The environment must not change meanwhile.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_launch_from_env(int64_t timeout_ms,
                                              struct gloo_rs_store_t **store,
                                              int32_t *rank,
                                              int32_t *size);

/// Tells this process's rank among those of its host, and how many of the job's processes run there: to choose a GPU, for
/// example. From the same environment as gloo_rs_launch_from_env; -1 where the launcher does not say. Opens nothing, and may
/// be called at any time. The environment must not change meanwhile.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_launch_local_rank_from_env(int32_t *local_rank,
                                                         int32_t *local_size);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_context_options_t), with defaults.
void gloo_rs_context_options_init(struct gloo_rs_context_options_t *options, size_t struct_size);

/// Makes the context of `rank` (0 to `size` - 1) in a group of `size`, not yet connected. `options` may be NULL for
/// defaults. The context keeps `device` alive. The caller owns the result and ends it with gloo_rs_context_destroy; on
/// failure `*context` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_create(struct gloo_rs_device_t *device,
                                             int32_t rank,
                                             int32_t size,
                                             const struct gloo_rs_context_options_t *options,
                                             struct gloo_rs_context_t **context);

/// Finds the other ranks over `store`, until the context's timeout. Every rank calls it, with a store, or a prefix in one,
/// that no other context ever used. The store is needed during this call only. Fails with GLOO_RS_ERROR_TIMEOUT, naming
/// the ranks that did not come; with GLOO_RS_ERROR_CLOSED if the context was closed before, or within a second after it is
/// closed in another thread; and with GLOO_RS_ERROR_INVALID_OPERATION if it was broken before.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_connect(struct gloo_rs_context_t *context,
                                              struct gloo_rs_store_t *store);

/// As gloo_rs_context_connect, without a store: the ranks find each other by `allgather`, which exchanges between the same ranks
/// (MPI_Allgather, or a framework's own) and gets `user`. It is called on the calling thread, with no lock of the library held, and
/// twice on every rank: a rank that cannot go on says so by it, and all fail. `bytes` is the same on all ranks. If it fails it is
/// not called again, and this call fails with the status that it returned, or GLOO_RS_ERROR_CALLBACK where that is no error's
/// number. What it gives is checked; that which is not from this job's ranks in their order fails with GLOO_RS_ERROR_MISMATCH.
/// The library cannot end it: the context's timeout, and whether the context was closed, are looked at after each call of it.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_connect_oob(struct gloo_rs_context_t *context,
                                                  gloo_rs_allgather_fn_t allgather,
                                                  void *user);

/// Finds the other ranks over `parent`, a connected context with the same rank and size, until the context's timeout.
/// Every rank calls it, with the same `tag`, which no other call on `parent` may be using meanwhile. `parent` is needed
/// during this call only.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_connect_from(struct gloo_rs_context_t *context,
                                                   struct gloo_rs_context_t *parent,
                                                   uint64_t tag);

/// Makes new contexts out of `context`, which is connected, as MPI_Comm_split does: the ranks that pass the same `color` (0 or more)
/// form one, in the order of their `key`s, and of their ranks in `context` where these are equal. A rank that passes
/// GLOO_RS_COLOR_UNDEFINED takes part, too, and gets NULL. Collective over `context`: every rank calls it, in the same order as its
/// other collectives; it may run beside any collective, and is refused with
/// GLOO_RS_ERROR_INVALID_OPERATION while another split runs on `context` in this process. The new context is connected. It has the
/// device, timeout and options of `context`, goes by the same measurements, and needs `context` no more. The caller owns it and
/// ends it with gloo_rs_context_destroy; on failure `*split` is NULL. A failure that one rank finds in itself all ranks report,
/// and `context` stays usable; one in the exchange breaks it, as with every collective.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_split(struct gloo_rs_context_t *context,
                                            int32_t color,
                                            int32_t key,
                                            struct gloo_rs_context_t **split);

/// This process's rank.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_context_rank(const struct gloo_rs_context_t *context, int32_t *rank);

/// How many ranks the group has.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_context_size(const struct gloo_rs_context_t *context, int32_t *size);

/// Milliseconds that an operation may take, if the call does not say otherwise.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_timeout(const struct gloo_rs_context_t *context,
                                              int64_t *timeout_ms);

/// Sets that time for operations that begin later; GLOO_RS_TIMEOUT_DEFAULT for 30 s.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_set_timeout(struct gloo_rs_context_t *context,
                                                  int64_t timeout_ms);

/// Reserves `n` slots for messages of the caller's own and sets `*slot` to the first. The same on all ranks, as long as all
/// reserve the same in the same order. It counts on from 0 and knows nothing of numbers that the program chose itself: who
/// uses both keeps its own apart, for example from 1 << 63 on. Collectives have slots of their own, which neither can meet.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_next_slot(struct gloo_rs_context_t *context,
                                                uint32_t n,
                                                uint64_t *slot);

/// Whether `rank` runs on this host. Known once the context is connected.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_shares_host(const struct gloo_rs_context_t *context,
                                                  int32_t rank,
                                                  bool *shares);

/// Sets `*broken` to whether collectives cannot run on the context any more, because one failed, a peer gave up, or it was
/// closed. Then why becomes the calling thread's last error, as if a call had just failed with it, and `*error`, if `error` is
/// not NULL, is filled as by gloo_rs_last_error; else `*error` says that nothing failed. A broken context is to be destroyed; a
/// new one may be connected over the same store, under a prefix not used before.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_broken(const struct gloo_rs_context_t *context,
                                             bool *broken,
                                             struct gloo_rs_error_t *error);

/// Ends every connection: what waits for a peer in any thread fails with GLOO_RS_ERROR_CLOSED, and so do later
/// operations. Closing twice is fine.
enum gloo_rs_status_t gloo_rs_context_close(struct gloo_rs_context_t *context);

/// Ends the caller's hold on the context. If other threads wait in it, in a collective, in connecting, or in one of its
/// pairs or buffers, it is closed as by gloo_rs_context_close, and their calls return. Otherwise its pairs and buffers go on
/// working until they are destroyed, and the connections end with the last of them. No other thread
/// may be beginning a call on the handle. NULL is fine.
void gloo_rs_context_destroy(struct gloo_rs_context_t *context);

/// The pair of `context` with `rank`, connected or not. The caller owns the result and ends it with gloo_rs_pair_destroy;
/// on failure `*pair` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_context_pair(struct gloo_rs_context_t *context,
                                           int32_t rank,
                                           struct gloo_rs_pair_t **pair);

/// The peer's rank.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_pair_rank(const struct gloo_rs_pair_t *pair, int32_t *rank);

/// What the peer must pass to gloo_rs_pair_connect, to be brought there by the caller's own means: bytes without meaning to
/// the caller, copied into `buffer` of `capacity` bytes. `*needed` is set to their number; `buffer` may be NULL to ask for
/// that only, `needed` may be NULL otherwise. A device for which nothing was named listens, if no context of it has connected
/// over a store, at an address that other hosts can reach, if there is one.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pair_address(const struct gloo_rs_pair_t *pair,
                                           void *buffer,
                                           size_t capacity,
                                           size_t *needed);

/// Connects, given the `bytes` that gloo_rs_pair_address returned on the peer, until the context's timeout. Both sides must
/// call it.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pair_connect(struct gloo_rs_pair_t *pair,
                                           const void *address,
                                           size_t bytes);

/// Ends this connection: what waits on it fails. Closing twice is fine.
enum gloo_rs_status_t gloo_rs_pair_close(struct gloo_rs_pair_t *pair);

/// Whether the connection stands.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_pair_is_connected(const struct gloo_rs_pair_t *pair, bool *connected);

/// How threads wait that wait for this pair only, as of now. `sync`: they sleep in the system at once instead of polling
/// first. `busy_poll`: they poll and never sleep, whatever `sync` is. Neither, the default: as other waits of the context,
/// which poll for a moment and then sleep. That concerns gloo_rs_pair_connect, waits on the pair's buffers, and waits on an
/// unbound buffer whose receives (or sends, puts and gets) are all with this peer, counted from when it last had none under
/// way. Other waits, and collectives, go on as before. Where several threads wait on one context, one of them polls for all,
/// for as long as any of them would.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pair_set_sync(struct gloo_rs_pair_t *pair,
                                            bool sync,
                                            bool busy_poll);

/// Ends the caller's hold on the pair; the connection stays as long as the context or a buffer does. No other thread
/// may be beginning a call on the handle. NULL is fine.
void gloo_rs_pair_destroy(struct gloo_rs_pair_t *pair);

/// A buffer for gloo_rs_buffer_send: `bytes` of memory at `data`, which the caller keeps valid until the buffer is destroyed
/// and does not change between a send and the return of its gloo_rs_buffer_wait_send. `data` needs no alignment. The caller
/// owns the result and ends it with gloo_rs_buffer_destroy; on failure `*buffer` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pair_create_send_buffer(struct gloo_rs_pair_t *pair,
                                                      uint64_t slot,
                                                      const void *data,
                                                      size_t bytes,
                                                      struct gloo_rs_buffer_t **buffer);

/// A buffer that the peer's send buffer of the same slot writes into: `bytes` of memory at `data`, which the caller keeps
/// valid until the buffer is destroyed. The peer may write at any time until then. `data` needs no alignment. The caller
/// owns the result and ends it with gloo_rs_buffer_destroy; on failure `*buffer` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pair_create_recv_buffer(struct gloo_rs_pair_t *pair,
                                                      uint64_t slot,
                                                      void *data,
                                                      size_t bytes,
                                                      struct gloo_rs_buffer_t **buffer);

/// Starts to write `length` bytes from `offset` of this send buffer into the peer's receive buffer, at `remote_offset`
/// there. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if the range leaves this buffer. Every send wants one
/// gloo_rs_buffer_wait_send. How long the peer's buffer is, only the peer knows: a range that leaves it ends the connection,
/// and what depends on that fails on both ranks with GLOO_RS_ERROR_MISMATCH and a message that names the write.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_buffer_send(struct gloo_rs_buffer_t *buffer,
                                          size_t offset,
                                          size_t length,
                                          size_t remote_offset);

/// Waits until one more send has left this buffer, which may then be written again. `timeout_ms` is in milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_buffer_wait_send(struct gloo_rs_buffer_t *buffer, int64_t timeout_ms);

/// Waits until one more write of the peer's has arrived in this receive buffer, and sets `*offset` and `*length` to where
/// and how many bytes; each may be NULL. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_buffer_wait_recv(struct gloo_rs_buffer_t *buffer,
                                               int64_t timeout_ms,
                                               size_t *offset,
                                               size_t *length);

/// Ends the buffer; the memory is the caller's alone again when this returns. Waits in other threads fail with
/// GLOO_RS_ERROR_CLOSED, and this returns after them. No other thread may be beginning a call on the handle. NULL is fine.
void gloo_rs_buffer_destroy(struct gloo_rs_buffer_t *buffer);

/// A buffer on `bytes` of memory at `data`, which the caller keeps valid until the buffer is destroyed. Bytes under a send
/// must not change, and bytes under a receive or get must not be touched, until the wait for it has returned. `data` needs no
/// alignment. The caller owns the result and ends it with gloo_rs_unbound_buffer_destroy; on failure `*buffer` is NULL.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_create(struct gloo_rs_context_t *context,
                                                    void *data,
                                                    size_t bytes,
                                                    struct gloo_rs_unbound_buffer_t **buffer);

/// Starts to send `bytes` from `offset` to rank `to`. A message meets the receive with the same slot there; messages of one
/// rank and slot keep their order. Every send wants one gloo_rs_unbound_buffer_wait_send.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_send(struct gloo_rs_unbound_buffer_t *buffer,
                                                  int32_t to,
                                                  uint64_t slot,
                                                  size_t offset,
                                                  size_t bytes);

/// Starts to receive at most `bytes` at `offset` from rank `from`. Every receive wants one gloo_rs_unbound_buffer_wait_recv,
/// which tells how many bytes came.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_recv(struct gloo_rs_unbound_buffer_t *buffer,
                                                  int32_t from,
                                                  uint64_t slot,
                                                  size_t offset,
                                                  size_t bytes);

/// Starts to receive at most `bytes` at `offset` from whichever of the `n` ranks in `from` sends first; when several have
/// messages waiting in the slot, they take turns: the rank that was served goes behind the others that wait, and ranks that
/// have sent nothing have no turn. The list may hold the caller's own rank; repeats change nothing.
/// gloo_rs_unbound_buffer_wait_recv tells the rank and how many bytes came.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_recv_any(struct gloo_rs_unbound_buffer_t *buffer,
                                                      const int32_t *from,
                                                      size_t n,
                                                      uint64_t slot,
                                                      size_t offset,
                                                      size_t bytes);

/// Waits until one more send, put or get of this buffer has completed, and sets `*rank`, if not NULL, to the rank it was with.
/// `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED if
/// gloo_rs_unbound_buffer_abort_wait_send ended the wait: sends, puts and gets go on.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_wait_send(struct gloo_rs_unbound_buffer_t *buffer,
                                                       int64_t timeout_ms,
                                                       int32_t *rank);

/// Waits until one more receive of this buffer has completed, and sets `*rank` to the rank it was from, and `*bytes`
/// to how many bytes came, which may be fewer than the receive asked for; each may be NULL. `timeout_ms` is in milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED if gloo_rs_unbound_buffer_abort_wait_recv
/// ended the wait: the receives stay.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_wait_recv(struct gloo_rs_unbound_buffer_t *buffer,
                                                       int64_t timeout_ms,
                                                       int32_t *rank,
                                                       size_t *bytes);

/// Ends the current gloo_rs_unbound_buffer_wait_send of another thread, or else the next one.
enum gloo_rs_status_t gloo_rs_unbound_buffer_abort_wait_send(struct gloo_rs_unbound_buffer_t *buffer);

/// Ends the current gloo_rs_unbound_buffer_wait_recv of another thread, or else the next one.
enum gloo_rs_status_t gloo_rs_unbound_buffer_abort_wait_recv(struct gloo_rs_unbound_buffer_t *buffer);

/// A key with which other ranks may put into this buffer and get from it, as long as it lives: ASCII text without spaces, to be
/// brought there by the caller's own means. Copied with its NUL byte, with which it has at most 64 bytes, into `key` of
/// `capacity` bytes. `*needed` is set to its bytes; `key` may be NULL to ask for that only, `needed` may be NULL otherwise.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_remote_key(struct gloo_rs_unbound_buffer_t *buffer,
                                                        char *key,
                                                        size_t capacity,
                                                        size_t *needed);

/// What a key of gloo_rs_unbound_buffer_remote_key says: the rank whose buffer it names, and how many bytes that has; each may
/// be NULL. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if `key` is not such a key; whether the buffer still lives only a put or
/// get tells.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_remote_key_parse(const char *key,
                                               int32_t *rank,
                                               size_t *bytes);

/// Starts to write `bytes` from `offset` of this buffer into the buffer that `key` names, at `remote_offset` there; its owner
/// need not do anything. One gloo_rs_unbound_buffer_wait_send returns when the bytes are there. `slot` has no meaning yet.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_put(struct gloo_rs_unbound_buffer_t *buffer,
                                                 const char *key,
                                                 uint64_t slot,
                                                 size_t offset,
                                                 size_t remote_offset,
                                                 size_t bytes);

/// Starts to read `bytes` at `remote_offset` of the buffer that `key` names into `offset` of this buffer; its owner need not do
/// anything. One gloo_rs_unbound_buffer_wait_send returns when the bytes are here. `slot` has no meaning yet.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_unbound_buffer_get(struct gloo_rs_unbound_buffer_t *buffer,
                                                 const char *key,
                                                 uint64_t slot,
                                                 size_t offset,
                                                 size_t remote_offset,
                                                 size_t bytes);

/// Ends the buffer; the memory is the caller's alone again when this returns. Waits in other threads fail with
/// GLOO_RS_ERROR_CLOSED, and this returns after them; operations that were not waited for are given up. No other thread
/// may be beginning a call on the handle. NULL is fine.
void gloo_rs_unbound_buffer_destroy(struct gloo_rs_unbound_buffer_t *buffer);

/// Fills at most `struct_size` bytes of `options`, which is to be sizeof(gloo_rs_collective_options_t), with defaults: no
/// buffers, no elements, GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM, root 0, tag 0, GLOO_RS_TIMEOUT_DEFAULT.
void gloo_rs_collective_options_init(struct gloo_rs_collective_options_t *options,
                                     size_t struct_size);

/// Combines the inputs of all ranks, `count` elements each, by `op`; the outputs of all ranks, `count` elements each,
/// get the result. With GLOO_RS_AVERAGE it is divided by the number of contributions. In place, with NULL or `output`
/// as `input`, the output holds the input.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allreduce(struct gloo_rs_context_t *context,
                                        const void *input,
                                        void *output,
                                        size_t count,
                                        enum gloo_rs_data_type_t data_type,
                                        enum gloo_rs_op_t op);

/// As gloo_rs_allreduce, with any number of inputs, all of which are combined, and one output or more, all of which get
/// the result. In place, with no inputs or with the very outputs as inputs, all outputs hold inputs.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allreduce_with(struct gloo_rs_context_t *context,
                                             const struct gloo_rs_collective_options_t *options);

/// Combines the inputs of all ranks, `count` elements each, by `op`; the root's output, of `count` elements, gets the
/// result. In place, with NULL or `output` as `input`, the output holds the input; on ranks other than the root it is
/// then read and left alone. With an input, `output` is ignored on other ranks.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce(struct gloo_rs_context_t *context,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     enum gloo_rs_data_type_t data_type,
                                     enum gloo_rs_op_t op,
                                     int32_t root);

/// As gloo_rs_reduce, with any number of inputs, all of which are combined, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce_with(struct gloo_rs_context_t *context,
                                          const struct gloo_rs_collective_options_t *options);

/// Combines the inputs of all ranks, a block of `count` elements for each rank, by `op`; the output of rank r, of
/// `count` elements, gets block r of the result. In place, `output` is where the rank's own block begins in `input`
/// (which costs a copy of it), of which the rest is left alone; or `input` is NULL: then the output holds all of the
/// input, the result is put at its start, and what follows is unspecified.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce_scatter(struct gloo_rs_context_t *context,
                                             const void *input,
                                             void *output,
                                             size_t count,
                                             enum gloo_rs_data_type_t data_type,
                                             enum gloo_rs_op_t op);

/// As gloo_rs_reduce_scatter, with a block of `counts[r]` elements for rank r, in the order of ranks. `counts` has as
/// many entries as there are ranks, the same on all.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce_scatterv(struct gloo_rs_context_t *context,
                                              const void *input,
                                              void *output,
                                              const size_t *counts,
                                              enum gloo_rs_data_type_t data_type,
                                              enum gloo_rs_op_t op);

/// As gloo_rs_reduce_scatter with `count`, or as gloo_rs_reduce_scatterv with `recv_counts`; with any number of inputs,
/// all of which are combined, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce_scatter_with(struct gloo_rs_context_t *context,
                                                  const struct gloo_rs_collective_options_t *options);

/// Rank r's output gets the inputs of ranks 0 to r, combined by `op` in this order; `count` elements each. In place,
/// with NULL or `output` as `input`, the output holds the input. There is no GLOO_RS_AVERAGE.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scan(struct gloo_rs_context_t *context,
                                   const void *input,
                                   void *output,
                                   size_t count,
                                   enum gloo_rs_data_type_t data_type,
                                   enum gloo_rs_op_t op);

/// As gloo_rs_scan, with one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scan_with(struct gloo_rs_context_t *context,
                                        const struct gloo_rs_collective_options_t *options);

/// Rank r's output gets the inputs of ranks 0 to r - 1, combined by `op` in this order; `count` elements each. Rank 0's
/// output is left alone. In place, with NULL or `output` as `input`, the output holds the input. There is no
/// GLOO_RS_AVERAGE.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_exscan(struct gloo_rs_context_t *context,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     enum gloo_rs_data_type_t data_type,
                                     enum gloo_rs_op_t op);

/// As gloo_rs_exscan, with one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_exscan_with(struct gloo_rs_context_t *context,
                                          const struct gloo_rs_collective_options_t *options);

/// Combines elements on this rank alone, by the library's kernels: `inout[i] = input[i] op inout[i]`, as MPI_Reduce_local.
/// `input` may equal `inout`, and otherwise must not overlap it. There is no GLOO_RS_AVERAGE.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_reduce_local(const void *input,
                                           void *inout,
                                           size_t count,
                                           enum gloo_rs_data_type_t data_type,
                                           enum gloo_rs_op_t op);

/// Copies the root's buffer, of `count` elements, to the buffers of all other ranks.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_broadcast(struct gloo_rs_context_t *context,
                                        void *buffer,
                                        size_t count,
                                        enum gloo_rs_data_type_t data_type,
                                        int32_t root);

/// As gloo_rs_broadcast, with one output or more, all of which get the root's elements. The root sends its input, which
/// other ranks need not have and which is ignored there; in place, with no input or with the first output as input, its
/// first output. A root with an input needs no output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_broadcast_with(struct gloo_rs_context_t *context,
                                             const struct gloo_rs_collective_options_t *options);

/// Puts the inputs of all ranks, `count` elements each, one after another into the root's output, in the order of
/// ranks. In place, on the root only, with NULL as `input` or with the place of the root's block in `output`, that
/// block already lies in its place. `output` is ignored on other ranks.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_gather(struct gloo_rs_context_t *context,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     enum gloo_rs_data_type_t data_type,
                                     int32_t root);

/// As gloo_rs_gather, with one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_gather_with(struct gloo_rs_context_t *context,
                                          const struct gloo_rs_collective_options_t *options);

/// As gloo_rs_gather, with a number of elements of its own for each rank: each sends `count`, and the root says in
/// `counts`, with an entry for each rank, how many it expects from whom. Blocks lie one directly after another; there
/// are no displacements. The root's `count`, and `counts` on other ranks, are ignored.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_gatherv(struct gloo_rs_context_t *context,
                                      const void *input,
                                      size_t count,
                                      void *output,
                                      const size_t *counts,
                                      enum gloo_rs_data_type_t data_type,
                                      int32_t root);

/// As gloo_rs_gatherv, with `counts` in `recv_counts`; one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_gatherv_with(struct gloo_rs_context_t *context,
                                           const struct gloo_rs_collective_options_t *options);

/// Splits the root's input into blocks of `count` elements, one for each rank in the order of ranks, and puts each into
/// its rank's output. In place, on the root only, `output` is where the root's own block begins in `input` (which costs
/// a copy of it); or `input` is NULL: then the output holds all blocks, and the own one is moved to its start. `input`
/// is ignored on other ranks.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scatter(struct gloo_rs_context_t *context,
                                      const void *input,
                                      void *output,
                                      size_t count,
                                      enum gloo_rs_data_type_t data_type,
                                      int32_t root);

/// As gloo_rs_scatter, with one output. The root has one input, or none for in place, or as many inputs as there are
/// ranks, of `count` elements each.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scatter_with(struct gloo_rs_context_t *context,
                                           const struct gloo_rs_collective_options_t *options);

/// As gloo_rs_scatter, with a number of elements of its own for each rank: the root says in `counts`, with an entry for
/// each rank, how many it sends to whom, and each other rank expects `count`. Blocks lie one directly after another;
/// there are no displacements. The root's `count`, and `counts` on other ranks, are ignored.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scatterv(struct gloo_rs_context_t *context,
                                       const void *input,
                                       const size_t *counts,
                                       void *output,
                                       size_t count,
                                       enum gloo_rs_data_type_t data_type,
                                       int32_t root);

/// As gloo_rs_scatterv, with `counts` in `send_counts`; one input on the root, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_scatterv_with(struct gloo_rs_context_t *context,
                                            const struct gloo_rs_collective_options_t *options);

/// Puts the inputs of all ranks, `count` elements each, one after another into the output of every rank, in the order
/// of ranks. In place, with NULL as `input` or with the place of the rank's block in `output`, that block already lies
/// in its place.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allgather(struct gloo_rs_context_t *context,
                                        const void *input,
                                        void *output,
                                        size_t count,
                                        enum gloo_rs_data_type_t data_type);

/// As gloo_rs_allgather, with any number of inputs, the same on all ranks, whose elements lie one after another in the
/// one output; or none for in place, as with one.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allgather_with(struct gloo_rs_context_t *context,
                                             const struct gloo_rs_collective_options_t *options);

/// As gloo_rs_allgather, with `counts[r]` elements from rank r. `counts` has an entry for each rank, and is the same on
/// all. Blocks lie one directly after another; there are no displacements.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allgatherv(struct gloo_rs_context_t *context,
                                         const void *input,
                                         void *output,
                                         const size_t *counts,
                                         enum gloo_rs_data_type_t data_type);

/// As gloo_rs_allgatherv, with `counts` in `recv_counts`; one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_allgatherv_with(struct gloo_rs_context_t *context,
                                              const struct gloo_rs_collective_options_t *options);

/// Block j of rank i's input becomes block i of rank j's output; each has a block of `count` elements for each rank. In
/// place, with NULL or `output` as `input`, the output holds the input.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_alltoall(struct gloo_rs_context_t *context,
                                       const void *input,
                                       void *output,
                                       size_t count,
                                       enum gloo_rs_data_type_t data_type);

/// As gloo_rs_alltoall, with one input, or none for in place, and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_alltoall_with(struct gloo_rs_context_t *context,
                                            const struct gloo_rs_collective_options_t *options);

/// As gloo_rs_alltoall, with a number of elements of its own for each pair of ranks: `send_counts[r]` to rank r,
/// `recv_counts[r]` from it, which is what that rank has in its `send_counts` for this one. Blocks lie one directly
/// after another, in the order of ranks, in the input as in the output; there are no displacements. There is no form in
/// place.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_alltoallv(struct gloo_rs_context_t *context,
                                        const void *input,
                                        const size_t *send_counts,
                                        void *output,
                                        const size_t *recv_counts,
                                        enum gloo_rs_data_type_t data_type);

/// As gloo_rs_alltoallv, with one input and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_alltoallv_with(struct gloo_rs_context_t *context,
                                             const struct gloo_rs_collective_options_t *options);

/// Exchanges block i of the input for block i of the partner's, which is rank XOR 2^i: a pattern to measure a network
/// with. There are `destinations` blocks of `count` elements: at most the base-2 logarithm of the context's size, which
/// must be a power of two. There is no form in place.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pairwise_exchange(struct gloo_rs_context_t *context,
                                                const void *input,
                                                void *output,
                                                size_t count,
                                                size_t destinations,
                                                enum gloo_rs_data_type_t data_type);

/// As gloo_rs_pairwise_exchange, with one input and one output.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_pairwise_exchange_with(struct gloo_rs_context_t *context,
                                                     const struct gloo_rs_collective_options_t *options);

/// Returns once all ranks have called it.
GLOO_RS_NODISCARD enum gloo_rs_status_t gloo_rs_barrier(struct gloo_rs_context_t *context);

/// As gloo_rs_barrier, with an algorithm, a timeout or a tag. It has no buffers and no data type.
GLOO_RS_NODISCARD
enum gloo_rs_status_t gloo_rs_barrier_with(struct gloo_rs_context_t *context,
                                           const struct gloo_rs_collective_options_t *options);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GLOO_RS_H */
