package brokers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	leastJava    = 17
	log4jVersion = "2.25.1"

	pomFile     = "pom.xml"
	loggingFile = "log4j2.yaml"
)

// javaLogging is how a program in Java logs: warnings, to its error output.
const javaLogging = `Configuration:
  Appenders:
    Console: {name: STDERR, target: SYSTEM_ERR, PatternLayout: {pattern: "%d %p %c %m%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDERR}]}
`

// pom is a Maven project that needs these artifacts, each a group, a name and a version with colons between them, and a
// logger. Maven finds the rest.
func pom(name string, artifacts ...string) string {
	var dependencies strings.Builder
	for _, a := range append(artifacts,
		"org.apache.logging.log4j:log4j-core:"+log4jVersion, "org.apache.logging.log4j:log4j-slf4j-impl:"+log4jVersion,
	) {
		group, rest, _ := strings.Cut(a, ":")
		artifact, version, _ := strings.Cut(rest, ":")
		fmt.Fprintf(&dependencies, "    <dependency>\n      <groupId>%s</groupId><artifactId>%s</artifactId>"+
			"<version>%s</version>\n    </dependency>\n", group, artifact, version)
	}
	return `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>postrider.invalid</groupId><artifactId>` + name + `</artifactId><version>1</version>
  <dependencies>
` + dependencies.String() + `  </dependencies>
</project>
`
}

// fetchJars has Maven put the jars that the folder's project needs into lib.
func fetchJars(ctx context.Context, dir, lib string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &MissingError{
			"Maven, which fetches Kafka for the tests,",
			"apt-get install maven, or brew install maven",
		}
	}
	repository := filepath.Join(dir, "repository")
	if err := retry(ctx, func(ctx context.Context) error {
		return command(ctx, dir, mvn, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime",
			"-DoutputDirectory="+lib, "-Dmaven.repo.local="+repository)
	}); err != nil {
		return err
	}
	if err := os.RemoveAll(repository); err != nil {
		return fmt.Errorf("removing what Maven downloaded: %w", err)
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava returns the path of a Java that runs Kafka.
func findJava(ctx context.Context) (string, error) {
	missing := &MissingError{
		"Java 17 or newer, which runs Kafka for the tests,",
		"apt-get install openjdk-17-jre-headless, or brew install openjdk",
	}
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	for _, candidate := range append(candidates, "java") {
		path, err := exec.LookPath(candidate)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
		found := javaVersion.FindSubmatch(out)
		if err != nil || found == nil {
			continue
		}
		if version, err := strconv.Atoi(string(found[1])); err == nil && version >= leastJava {
			return path, nil
		}
	}
	return "", missing
}
