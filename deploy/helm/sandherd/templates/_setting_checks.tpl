{{/* Checks of `settings` that its schema can't make; the settings loader makes the same ones. It renders nothing. */}}
{{- define "sandherd.checkSettings" -}}
{{- range $name := list "kubernetes_egress" "kubernetes_ingress" "daytona_allowed_networks" }}
{{- include "sandherd.checkNetworks" (list (printf "settings.%s" $name) (get $.Values.settings $name)) }}
{{- end }}
{{- include "sandherd.checkNetworks" (list "networkPolicy.dns.servers" .Values.networkPolicy.dns.servers) }}
{{- include "sandherd.checkPrefixes" . }}
{{- include "sandherd.checkMounts" . }}
{{- with .Values.settings }}
{{- if and .merge_policy (ne .merge_policy "never") (not .pull_requests) }}
{{- fail "settings.merge_policy: no pull request would be opened; set pull_requests, too" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (list "name of the value" networks). IPv6 is checked by the settings loader only. */}}
{{- define "sandherd.checkNetworks" -}}
{{- $name := first . }}
{{- range $index, $text := last . | default list }}
{{- if eq (include "sandherd.hasHostBits" (first (splitList "@" $text))) "yes" }}
{{- fail (printf "%s.%d: %s has host bits set; write the first address of the network" $name $index $text) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sandherd.hasHostBits" -}}
{{- if regexMatch "^[0-9.]+/[0-9]+$" . }}
{{- $parts := splitList "/" . }}
{{- $address := 0 }}
{{- range splitList "." (first $parts) }}{{ $address = add (mul $address 256) (int .) }}{{ end }}
{{- $size := 1 }}
{{- range until (sub 32 (last $parts) | int) }}{{ $size = mul $size 2 }}{{ end }}
{{- if mod $address $size }}yes{{ end }}
{{- end }}
{{- end }}

{{- define "sandherd.checkPrefixes" -}}
{{- $longest := (include "sandherd.facts" . | fromYaml).longest_branch_prefix | int }}
{{- $seen := dict }}
{{- range $index, $entry := .Values.settings.branch_prefixes | default list }}
{{- $where := printf "settings.branch_prefixes.%d" $index }}
{{- $prefix := first (splitList "=" $entry) }}
{{- if gt (len $prefix) $longest }}{{ fail (printf "%s: a prefix may have %d characters" $where $longest) }}{{ end }}
{{- if hasKey $seen $prefix }}{{ fail (printf "%s: %s is listed twice; list its words together" $where $prefix) }}{{ end }}
{{- $_ := set $seen $prefix true }}
{{- if and (not (contains "=" $entry)) (lt (add1 $index | int) (len $.Values.settings.branch_prefixes)) }}
{{- fail (printf "%s: only the last prefix may have no words: those after it would have no effect" $where) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sandherd.checkMounts" -}}
{{- $allowed := .Values.settings.sandbox_mounts | default list }}
{{- range $profile, $own := .Values.settings.profiles | default dict }}
{{- range $mount := $own.mounts | default list }}
{{- $within := has $mount.source $allowed }}
{{- range $folder := $allowed }}
{{- $below := hasPrefix (printf "%s/" (trimSuffix "/" $folder)) (printf "%s/" $mount.source) }}
{{- if and (hasPrefix "/" $folder) $below }}{{ $within = true }}{{ end }}
{{- end }}
{{- if not $within }}
{{- fail (printf "settings.profiles.%s.mounts: %s is not in settings.sandbox_mounts; add it there" $profile $mount.source) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
