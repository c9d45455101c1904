//! What is particular to the store in a Redis server, against a real one.

#[path = "../../../tests/support/redis_server.rs"]
mod redis_server;

pub(in super::super) use redis_server::RedisServer;
