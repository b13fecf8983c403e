//! The columns of the tables.

use super::report::{Column, column, percent};

/// Of rates.
pub const RATE: [Column; 15] = [
    column("varied", "varied", 0),
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("cores", "cores", 0),
    column("model", "model", 0),
    column("messages_per_connection", "messages/conn", 0),
    column("message_bytes", "bytes", 0),
    column("connections_per_s", "connections/s", 0),
    column("messages_per_s", "messages/s", 0),
    column("server_cpu_us_per_connection", "server µs/conn", 2),
    column("server_own_us_per_connection", "own µs", 2),
    column("frames_per_connection", "frames/conn", 2),
    column("frames_per_s", "frames/s", 0),
    percent("server_busy", "server busy %"),
    percent("client_busy", "client busy %"),
];

/// Of key-value servers.
pub const KEEPING: [Column; 13] = [
    column("varied", "varied", 0),
    column("client", "client", 0),
    column("system", "system", 0),
    column("cores", "cores", 0),
    column("concurrent", "at once", 0),
    column("messages_per_connection", "requests/conn", 0),
    column("messages_per_s", "requests/s", 0),
    column("latency_p50_us", "p50 µs", 0),
    column("latency_p99_us", "p99", 0),
    column("server_cpu_us_per_message", "server µs/request", 2),
    column("misses", "misses", 0),
    percent("server_busy", "server busy %"),
    percent("client_busy", "client busy %"),
];

/// Of latency against load.
pub const LATENCY: [Column; 13] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("load", "load", 0),
    column("concurrent", "at once", 0),
    column("offered_per_s", "offered/s", 0),
    column("connections_per_s", "connections/s", 0),
    column("latency_min_us", "min µs", 0),
    column("latency_p50_us", "p50", 0),
    column("latency_p90_us", "p90", 0),
    column("latency_p99_us", "p99", 0),
    column("latency_p999_us", "p99.9", 0),
    column("latency_max_us", "max", 0),
    percent("server_busy", "server busy %"),
];

/// Of response times and their parts.
pub const TABLE2: [Column; 15] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("concurrent", "at once", 0),
    column("connections_per_s", "connections/s", 0),
    column("connect_mean_us", "connect mean µs", 0),
    column("connect_max_us", "connect max", 0),
    column("processing_mean_us", "processing mean µs", 0),
    column("processing_max_us", "processing max", 0),
    column("latency_min_us", "total min µs", 0),
    column("latency_mean_us", "mean", 0),
    column("latency_stdev_us", "stdev", 0),
    column("latency_p50_us", "p50", 0),
    column("latency_p99_us", "p99", 0),
    column("latency_p999_us", "p99.9", 0),
    column("latency_max_us", "max", 0),
];

/// Of bulk transfers.
pub const BULK: [Column; 10] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("sending", "sending", 0),
    column("arriving", "arriving", 0),
    column("concurrent", "flows", 0),
    column("gbit_per_s", "Gbit/s", 2),
    column("server_cpu_s_per_gb", "server CPU s/GB", 3),
    column("bytes_per_frame", "bytes/frame", 0),
    percent("server_busy", "server busy %"),
    percent("client_busy", "client busy %"),
];

/// Of shares.
pub const FAIRNESS: [Column; 5] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("concurrent", "flows", 0),
    column("jain", "Jain's index", 5),
    column("gbit_per_s", "Gbit/s", 2),
];

/// Of a lane's turns.
pub const BATCH: [Column; 10] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("concurrent", "at once", 0),
    column("connections_per_s", "connections/s", 0),
    column("received_per_turn", "received/turn", 2),
    column("sent_per_turn", "sent/turn", 2),
    column("jobs_per_turn", "jobs/turn", 2),
    column("events_per_turn", "events/turn", 2),
    percent("idle_turns_share", "idle turns %"),
    column("sleeps", "sleeps", 0),
];

/// Of what idles.
pub const IDLE: [Column; 5] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("held", "idle connections", 0),
    percent("server_process_share", "server process, % of a core"),
    percent("server_busy", "server core busy %"),
];

/// Of many connections.
pub const CONNECTIONS: [Column; 9] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("held", "idle connections", 0),
    column("bytes_per_connection", "bytes each", 0),
    column("bytes_per_further_connection", "each of the second half", 0),
    column("opened_per_s", "opened/s", 0),
    column("connections_per_s", "short connections/s meanwhile", 0),
    column("server_cpu_us_per_connection", "server µs/conn", 2),
    percent("client_busy", "peer busy %"),
];

/// Of where time goes.
pub const PROFILE: [Column; 11] = [
    column("system", "system", 0),
    column("wire", "wire", 0),
    column("connections_per_s", "connections/s", 0),
    percent("kernel", "kernel %"),
    percent("packet_io", "packet I/O %"),
    percent("tcp", "TCP %"),
    percent("application", "application %"),
    percent("library", "library %"),
    percent("unknown", "unknown %"),
    column("samples", "samples", 0),
    percent("server_busy", "server busy %"),
];

/// Of Fastsocket's steps.
pub const FASTSOCKET: [Column; 16] = [
    column("work", "work", 0),
    column("system", "step", 0),
    column("cores", "cores", 0),
    column("socket_close_ns", "socket+close ns", 0),
    column("connections_per_s", "connections/s", 0),
    column("server_cpu_us_per_connection", "server µs/conn", 2),
    column("server_own_us_per_connection", "own µs", 2),
    percent("local_accepted", "local, accepted %"),
    percent("local_opened", "local, opened %"),
    column("balance", "busiest/idlest", 3),
    percent("idlest_worker", "idlest worker %"),
    percent("busiest_worker", "busiest %"),
    column("lock_waits_per_connection", "lock waits/conn", 3),
    column("cache_misses_per_connection", "cache misses/conn", 0),
    column("latency_p99_us", "p99 µs", 0),
    column("frames_per_connection", "frames/conn", 2),
];
