"""Transport: sends requests and streamed answers between processes, over TCP, TLS or Unix sockets."""
