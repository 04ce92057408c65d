#!/bin/sh
# Stands in for `nvidia-smi compute-policy` in tests. The GPU's UUID is a folder in which it keeps the length, and whose
# last part says how it behaves. Usage: compute-policy -i UUID --list | --set-timeslice N
[ "$1" = compute-policy ] && [ "$2" = -i ] || exit 64
state="$3/length"
case "$3" in
*/hangs) exec sleep 600 ;;
*/absent) echo "No devices were found"; exit 6 ;;
*/novel) echo "|   0   Timeslice       Endless       |"; exit 0 ;;
esac
case "$4" in
--list)
    length=$(cat "$state" 2>/dev/null || echo Default)
    cat <<EOF
+-------------------------------------+
| GPU compute policies:               |
| GPU     Name           Value        |
|=====================================|
|   0   Timeslice       $length       |
+-------------------------------------+
EOF
    ;;
--set-timeslice)
    case "$3" in
    */forbidden) echo "Insufficient Permissions"; exit 4 ;;
    */deaf) exit 0 ;;
    esac
    echo "$5" >>"$3/calls"
    # In one step, for another process may read it.
    case "$5" in 0) echo Default ;; 1) echo Short ;; 2) echo Medium ;; 3) echo Long ;; esac >"$state.new"
    mv "$state.new" "$state"
    ;;
*) exit 64 ;;
esac
