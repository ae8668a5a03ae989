# Selects the source of packages: the wheels beside this file, or else the named index, or else pip's default index.
if [ -d wheels ]; then
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels
  printf 'no-index = true\nfind-links = ["%s/wheels"]\n' "$PWD" > uv.toml
elif [ -n "${INDEX_URL:-}" ]; then
  export PIP_INDEX_URL="$INDEX_URL" UV_DEFAULT_INDEX="$INDEX_URL"
fi
