{{/* Names, and the labels by which objects are selected. */}}

{{- define "sandherd.facts" -}}
{{ .Files.Get "files/facts.yaml" }}
{{- end }}

{{- define "sandherd.name" -}}
{{- if contains "sandherd" .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-sandherd" (.Release.Name | trunc 31 | trimSuffix "-") }}
{{- end -}}
{{- end }}

{{/* The name of one part: takes (list $ "component"). */}}
{{- define "sandherd.part" -}}
{{ include "sandherd.name" (first .) }}-{{ last . }}
{{- end }}

{{- define "sandherd.ours" -}}
app.kubernetes.io/name: sandherd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandherd.selector" -}}
{{ include "sandherd.ours" (first .) }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "sandherd.labels" -}}
{{ include "sandherd.selector" . }}
app.kubernetes.io/part-of: sandherd
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sandherd.image" -}}
{{- $ := first . -}}
{{- $path := list $.Values.image.registry $.Values.image.repository (last .) | compact | join "/" -}}
{{- with get $.Values.image.digests (last .) -}}
{{ printf "%s@%s" $path . }}
{{- else -}}
{{ printf "%s:%s" $path ($.Values.image.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "sandherd.sandboxes" -}}
{{ .Values.sandboxes.namespace | default (printf "%s-sandboxes" .Release.Namespace) }}
{{- end }}

{{/* The namespaces of sandboxes: a list, as JSON. That of a project has what is not set for it from `sandboxes`. */}}
{{- define "sandherd.places" -}}
{{- $common := omit .Values.sandboxes "image" "projects" -}}
{{- $places := list (set (deepCopy $common) "namespace" (include "sandherd.sandboxes" .)) -}}
{{- range $own := .Values.sandboxes.projects -}}
{{- $place := deepCopy $common -}}
{{- range $key, $value := $own }}{{ $_ := set $place $key $value }}{{ end -}}
{{- $places = append $places $place -}}
{{- end -}}
{{ toJson $places }}
{{- end }}

{{/* The runtimes of sandboxes: a list, as JSON. */}}
{{- define "sandherd.runtimes" -}}
{{- $runtimes := concat (list .Values.settings.runtime) (.Values.settings.runtimes | default list) -}}
{{- range .Values.settings.profiles | default dict }}{{ $runtimes = append $runtimes (.runtime | default "") }}{{ end -}}
{{ toJson $runtimes }}
{{- end }}

{{/* "yes" if sandboxes are pods of this cluster. */}}
{{- define "sandherd.podsAreMade" -}}
{{- if has "kubernetes" (include "sandherd.runtimes" . | fromJsonArray) }}yes{{ end -}}
{{- end }}

{{/* A setting's variable, with its value: takes (list $ "setting" "value"). Nothing for an empty value. */}}
{{- define "sandherd.variable" -}}
{{- $facts := include "sandherd.facts" (first .) | fromYaml -}}
{{- if last . }}
- name: {{ get $facts.variables (index . 1) | required (printf "no variable for %s" (index . 1)) }}
  value: {{ last . | toString | quote }}
{{- end }}
{{- end }}
