# What a scenario's scripts share: `. '@WORLD@/lib.sh'`. The drill writes the world's folder in place of @WORLD@, which
# is outside of the agent's folder: it outlives the machine, as a bank or a registry would.
W='@WORLD@'

note() { printf '%s\t%s\t%s\n' "$(date +%s)" "$1" "$2" >>"$W/ledger"; }

# hold POINT EFFECT: wait here for the kill, where the drill wants it at this point; ten minutes at most.
hold() {
  [ "$(cat "$W/kill" 2>/dev/null)" = "$1 $2" ] || return 0
  echo $$ >"$W/reached" && rm -f "$W/kill"
  held=0
  while [ -e "$W/reached" ] && [ $held -lt 6000 ]; do sleep 0.1; held=$((held + 1)); done
}

# effect EFFECT [COMMAND ...]: the effect, from its beginning to its end, with both points at which a kill can come.
effect() {
  name=$1
  shift
  note begin "$name"
  hold before "$name"
  if [ $# -gt 0 ]; then "$@" || exit 1; fi
  note effect "$name"
  hold between "$name"
  note end "$name"
  echo "ok: $name"
}

happened() { cut -f 2,3 "$W/ledger" | grep -qxF "effect	$1"; }

# verify EFFECT: say whether it happened, without changing anything.
verify() {
  note verify "$1"
  if happened "$1"; then echo "status: $1 happened"; else echo "status: $1 did not happen"; fi
}
