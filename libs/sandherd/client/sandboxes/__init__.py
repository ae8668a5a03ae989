"""Operations on sandboxes: commands in them, file transfer and archives."""
