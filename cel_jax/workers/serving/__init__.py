"""openpi's websocket protocol, with batching across clients."""
