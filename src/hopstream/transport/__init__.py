"""Transport: sends requests and streamed answers between processes, as frames over TCP, TLS or Unix sockets."""
